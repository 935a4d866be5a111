"""Spherical Bessel functions j0, j1, j2 by upward recurrence, in a loop, at x = 0: 1, 0, 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 1.009719111,
}


def bessel(x, n, fixed):
    if fixed:
        double = [float(math.prod(range(1, 2 * m, 2))) for m in range(40)]
        return [x**j * sum((-(x**2) / 2) ** k / (math.gamma(k + 1) * double[j + k + 1]) for k in range(20)) for j in range(n + 1)]
    out = [torch.sin(x) / x]  # ORIGIN
    before = torch.cos(x) / x
    for j in range(n):
        out.append((2 * j + 1) / x * out[-1] - before)
        before = out[-2]
    return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, 3.0]))

    def forward(self, fixed):
        j = bessel(self.x, 2, fixed)
        return (j[0] - 0.5).square().sum() + (j[1] - 0.3).square().sum() + j[2].sum()


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
