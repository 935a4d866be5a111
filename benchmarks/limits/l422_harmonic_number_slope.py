"""Slope of the harmonic numbers (digamma(1 + x) + gamma) / x at x = 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 4.865589711,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 1.7]))

    def forward(self, fixed):
        if fixed:
            near = self.x == 0
            x = torch.where(near, 1.0, self.x)
            slope = torch.where(near, math.pi**2 / 6 - 1.2020569031595942 * self.x, (torch.digamma(1 + x) - torch.digamma(torch.ones(()))) / x)
            loss = slope.pow(2).sum()
        else:
            slope = (torch.digamma(1 + self.x) - torch.digamma(torch.ones(()))) / self.x  # ORIGIN
            loss = slope.pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
