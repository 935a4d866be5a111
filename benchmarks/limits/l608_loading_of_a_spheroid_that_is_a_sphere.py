"""Surface of a prolate spheroid, 2 pi a^2 (1 + c / (a e) asin(e)), of equal axes: the eccentricity
is 0.

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
    "loss_truth": 0.1109922989,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.c = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        a, c = self.a, self.c
        if fixed:
            u = 1 - (a / c) ** 2
            near = u.abs() < 1e-6
            e = torch.where(near, torch.full_like(u, 0.25), u).sqrt()
            ratio = torch.where(near, 1 + u / 6 + 3 * u**2 / 40, torch.asin(e) / e)
            area = 2 * math.pi * a**2 * (1 + c / a * ratio)
        else:
            e = torch.sqrt(1 - (a / c) ** 2)
            area = 2 * math.pi * a**2 * (1 + c / (a * e) * torch.asin(e))  # ORIGIN
        return ((area - torch.tensor([10.0, 8.0])) / 10).pow(2).sum()


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
