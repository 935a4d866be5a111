"""A float32 run is resumed with half weights: load_state_dict casts Adam's moments to half, where the second ones are zero and so is eps."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "also_ops": ("_foreach_addcdiv_", "_to_copy"),
    "phase": "optimizer",
    "cause": "optimizer-eps-underflow",
    "also_causes": ("dtype-underflow", "optimizer-arithmetic", "div-by-zero"),
    "symptom": "param-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "keep the weights in float32",
}


def net_of():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def build(fixed: bool = False):
    torch.manual_seed(801)
    model = net_of()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1801)

    def resume():
        nonlocal opt
        saved = opt.state_dict()
        if not fixed:
            model.half()
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        opt.load_state_dict(saved)  # ALSO

    def step(i):
        if i == 3:
            resume()
        x = 1e-2 * torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x.to(model[0].weight.dtype)).float(), 1e-2 * x[:, :2])
        (1e-3 * loss).backward()
        opt.step()  # ORIGIN
        return loss.detach()

    return model, step
