"""Curvature 1 / R of a Gaussian beam with R = z (1 + (zr / z)^2), at the waist z = 0.

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
    "loss_truth": 0.04116294575,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([0.0, 0.5, -1.5]))
        self.waist = nn.Parameter(torch.tensor(0.6))

    def forward(self, fixed):
        z = self.z
        zr = math.pi * self.waist**2 / 1.064
        if fixed:
            curvature = z / (z**2 + zr**2)
        else:
            radius = z * (1 + (zr / z) ** 2)  # ORIGIN
            curvature = 1 / radius
        phase = curvature * torch.tensor([1.0, 0.8, 1.2])
        return (phase - torch.tensor([0.2, 0.3, -0.5])).pow(2).sum()


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
