"""Ratio of arc and chord, asin(c) / c, of two stations at one place.

Source: well-known fault (haversine distances of identical points)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1737565279,
}


class Arc(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([0.0, 0.5, -0.8]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.c.abs() < 1e-2, torch.full_like(self.c, 0.5), self.c)
            ratio = torch.where(self.c.abs() < 1e-2, 1 + self.c**2 / 6 + 3 * self.c**4 / 40, torch.asin(small) / small)
        else:
            ratio = torch.asin(self.c) / self.c  # ORIGIN
        loss = (ratio - 1.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Arc()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    c = torch.tensor([0.0, 0.5, -0.8], dtype=torch.float64, requires_grad=True)
    small = torch.where(c.abs() < 1e-2, torch.full_like(c, 0.5), c)
    ratio = torch.where(c.abs() < 1e-2, 1 + c**2 / 6 + 3 * c**4 / 40, torch.asin(small) / small)
    loss = (ratio - 1.3).pow(2).sum()
    dc_, = torch.autograd.grad(loss, [c])
    return {"c": dc_}
