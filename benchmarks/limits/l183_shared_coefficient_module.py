"""A coefficient of Rodrigues' formula in a module that is called twice.

Source: well-known fault (layers for rotations)
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
    "loss_truth": 0.4156689582,
}


class Coefficient(nn.Module):
    def forward(self, t):
        return (1 - torch.cos(t)) / t.square()  # ORIGIN


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, fixed):
        if fixed:
            curve = lambda t: torch.sinc(t / (2 * math.pi)) ** 2 / 2
            total = curve(self.a) + 2 * curve(self.b)
        else:
            curve = Coefficient()
            total = curve(self.a) + 2 * curve(self.b)
        loss = (total + self.a * self.b - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Twice()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    curve = lambda t: torch.sinc(t / (2 * math.pi)) ** 2 / 2
    total = curve(a) + 2 * curve(b)
    loss = (total + a * b - 1.0).pow(2).sum()
    found = torch.autograd.grad(loss, [a, b], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["a", "b"], [a, b], found)}
    return true
