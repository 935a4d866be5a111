"""A learning rate kept as a tensor and warmed up by division: the number of warm-up steps is zero for the second stage."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("add_", "mul", "addcdiv_", "mul_", "sub_"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "learning-rate",
    "also_causes": ("div-by-zero",),
    "symptom": "param-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "clamp the number of warm-up steps at one",
}


def build(fixed: bool = False):
    torch.manual_seed(657)
    net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    rate = torch.tensor(1e-2)
    opt = torch.optim.SGD(net.parameters(), lr=rate)
    gen = torch.Generator().manual_seed(757)

    def step(i):
        warm = torch.tensor(3.0 if i < 3 else 0.0)
        done = torch.tensor(float(i if i < 3 else i - 3))
        if fixed:
            warm = warm.clamp(min=1.0)
        share = (done / warm).clamp(max=1.0)  # ORIGIN
        opt.param_groups[0]["lr"] = 1e-2 * (0.1 + 0.9 * share)
        x = torch.randn(16, 5, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        opt.step()  # ALSO
        return loss

    return net, step
