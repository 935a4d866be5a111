"""Lateral offset (1 - cos(k s)) / k of a road whose curvature is 0, by keyword arguments.

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
    "loss_truth": 0.4510166126,
}


def offset(curvature, length):
    numerator = torch.sub(
        input=1.0 * torch.ones_like(curvature), other=torch.cos(curvature * length)
    )
    return torch.div(input=numerator, other=curvature)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.05]))

    def forward(self, fixed):
        s = 10.0
        if fixed:
            y = self.k * s**2 / 2 * torch.sinc(self.k * s / (2 * math.pi)) ** 2
        else:
            y = offset(self.k, s)
        return (y - torch.tensor([0.5, 2.0])).pow(2).sum()


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
