"""Chance of light to escape from a sphere, 3 / (4 t) (1 - 1 / (2 t^2) + (1 / t + 1 / (2 t^2)) e^-2t), if transparent: 1, slope -3/4.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.3014422083,
}


def escape(t, fixed):
    if fixed:
        return sum(3 * (-2 * t) ** n * (n + 2) / math.gamma(n + 3 + 1) for n in range(40))
    return 3 / (4 * t) * (1 - 1 / (2 * t**2) + (1 / t + 1 / (2 * t**2)) * torch.exp(-2 * t))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 1.0, 2.5]))

    def forward(self, fixed):
        return (escape(self.t, fixed) - torch.tensor([0.7, 0.2, 0.6])).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
