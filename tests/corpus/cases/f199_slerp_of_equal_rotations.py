"""Spherical interpolation divides by sin(omega); two equal keyframes have omega zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "fall back to lerp inside the argument",
}


class Slerp(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.t = nn.Parameter(torch.tensor(0.3))

    def forward(self, a, b):
        dot = (a * b).sum(-1, keepdim=True).clamp(-1, 1).detach()
        omega = torch.acos(dot).clamp(min=self.floor)
        so = torch.sin(omega)
        wa = torch.sin((1 - self.t) * omega) / so  # ORIGIN
        wb = torch.sin(self.t * omega) / so
        return wa * a + wb * b


def build(fixed: bool = False):
    torch.manual_seed(416)
    net = Slerp(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(916)

    def step(i):
        opt.zero_grad()
        a = F.normalize(torch.randn(7, 4, generator=gen), dim=-1)
        b = F.normalize(torch.randn(7, 4, generator=gen), dim=-1)
        if i == 2:
            a[3] = b[3] = torch.tensor([1.0, 0, 0, 0])
        loss = (net(a, b) - a).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
