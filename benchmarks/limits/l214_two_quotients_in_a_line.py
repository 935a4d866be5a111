"""Two quotients of different variables on one line, both at 0.

Source: well-known fault (separable kernels)
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
    "loss_truth": 0.2317354337,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.y = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, fixed):
        if fixed:
            kernel = torch.sinc(self.x / math.pi) - near_zero(self.y, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
        else:
            kernel = torch.sin(self.x) / self.x - torch.expm1(self.y) / self.y  # ORIGIN
        loss = ((1 + self.x) * kernel + 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Separable()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    kernel = torch.sinc(x / math.pi) - near_zero(y, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
    loss = ((1 + x) * kernel + 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [x, y], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x", "y"], [x, y], found)}
    return true
