"""A sinc kernel with its limit at zero put in by where; the Jacobian by torch.func of that branch is what training
uses.
"""

import torch
import torch.func as ft
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "put one in the place of zero before dividing",
}


def sinc(x, safe):
    y = torch.where(x == 0, 1.0, x) if safe else x
    return torch.where(x == 0, 1.0, torch.sin(y) / y)  # ORIGIN


class Interpolator(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.offset = nn.Parameter(torch.linspace(-2, 2, 6))
        self.amp = nn.Parameter(torch.rand(6))

    def at(self, t):
        return (self.amp * sinc(t - self.offset, self.safe)).sum()

    def slope(self, t):
        return ft.vmap(ft.jacrev(self.at))(t)


def build(fixed: bool = False):
    torch.manual_seed(907)
    net = Interpolator(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(912)

    def step(i):
        opt.zero_grad()
        t = torch.rand(12, generator=gen) * 3 - 1.5
        if i == 2:
            t[5] = net.offset.detach()[2]
        loss = (net.slope(t) - torch.cos(t)).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
