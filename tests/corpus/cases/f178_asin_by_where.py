"""Refraction by Snell's law: total reflection is chosen by where(), the arcsine of more than one is NaN in the branch not taken."""

import torch
from torch import nn

META = {
    "origin_op": "asin",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("inverse-function-domain",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "clamp the sine before asin",
}


class Lens(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.index = nn.Parameter(torch.tensor(1.4))

    def forward(self, angle):
        s = self.index * torch.sin(angle)
        inner = s.clamp(max=0.999) if self.safe else s
        out = torch.asin(inner)  # ORIGIN
        return torch.where(s < 0.999, out, torch.pi - angle)


def build(fixed: bool = False):
    torch.manual_seed(322)
    net = Lens(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(822)

    def step(i):
        opt.zero_grad()
        angle = torch.linspace(0.05, 1.4, 20) + 0.01 * torch.rand(20, generator=gen)
        loss = (net(angle) - 1.3 * angle).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
