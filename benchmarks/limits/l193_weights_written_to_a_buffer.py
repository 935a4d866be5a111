"""Kernel weights written with out= where no gradient is taken.

Source: well-known fault (precomputed windows)
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
    "loss_truth": 0.1555630069,
}


class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
        self.a = nn.Parameter(torch.tensor([0.3, 0.2, -0.5]))

    def forward(self, fixed):
        if fixed:
            with torch.no_grad():
                weights = torch.sinc(self.x / math.pi)
        else:
            weights = torch.empty(3)
            with torch.no_grad():
                torch.div(torch.sin(self.x), self.x, out=weights)  # ORIGIN
        loss = (weights * self.a - 0.1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Window()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([0.3, 0.2, -0.5], dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        weights = torch.sinc(x / math.pi)
    loss = (weights * a - 0.1).pow(2).sum()
    found = torch.autograd.grad(loss, [x, a], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x", "a"], [x, a], found)}
    return true
