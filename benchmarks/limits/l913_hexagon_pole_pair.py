"""Difference of two cotangents with the angle sqrt(3), at 0: both have poles that cancel.

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
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.966051569,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, -0.9]))
        self.g = nn.Parameter(torch.tensor([1.0, 0.5, 2.0]))

    def forward(self, fixed):
        x, c = self.x, math.sqrt(3)
        if fixed:
            near = x.abs() < 1e-2
            s = torch.where(near, torch.ones_like(x), x)
            far = c / torch.tan(c * s) - 1 / torch.sin(s) * torch.cos(s)
            y = torch.where(near, -2 * x / 3, far)
        else:
            y = c / torch.tan(c * x) - torch.cos(x) / torch.sin(x)  # ORIGIN
        return (self.g * y - 0.2).square().sum()


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
