"""(1 - cos x) / x**2 by an augmented division.

Source: well-known fault (curvature coefficients, at rest)
"""
import math

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
    "loss_truth": 0.4517741259,
}


class Bend(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.6, -1.3]))

    def forward(self, fixed):
        if fixed:
            ratio = torch.sinc(self.x / (2 * math.pi)) ** 2 / 2
        else:
            ratio = 1 - torch.cos(self.x)
            ratio /= self.x**2  # ORIGIN
        loss = (ratio * (1 + self.x) - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Bend()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.6, -1.3], dtype=torch.float64, requires_grad=True)
    ratio = torch.sinc(x / (2 * math.pi)) ** 2 / 2
    loss = (ratio * (1 + x) - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
