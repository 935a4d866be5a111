"""A schedule that sets the learning rate by how far the loss fell since the last epoch; the loss of clipped errors reaches zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("mul",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("learning-rate",),
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "bound the ratio from below",
    "twin_rests": (5, 6, 7),
}


def build(fixed: bool = False):
    torch.manual_seed(470)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.02))
    gen = torch.Generator().manual_seed(570)
    last = [torch.ones(())]

    def step(i):
        x = torch.randn(16, 3, generator=gen) * (1e-3 if i >= 5 else 1.0)
        opt.zero_grad()
        miss = (net(x) - x.sum(1, keepdim=True) - net.bias).abs()
        loss = torch.relu(miss - 0.05).mean()
        loss.backward()
        with torch.no_grad():
            gain = last[0] / (loss.clamp_min(1e-6) if fixed else loss)  # ORIGIN
            opt.param_groups[0]["lr"] = 0.02 * gain if not fixed else 0.02 * gain.clamp(0.5, 2.0)
        last[0] = loss.detach()
        opt.step()
        return loss

    return net, step
