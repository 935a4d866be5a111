"""Mualem's conductivity (1 - (1 - s^(1/m))^m)^2 of a saturated soil, s = 1: it dries with an
infinite slope.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.09833113503,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([1.0, 0.8, 0.5]))

    def forward(self, fixed):
        m = 0.5
        inner = 1 - self.s ** (1 / m)
        if fixed:
            inner = inner + torch.tensor([1e-12, 0.0, 0.0])
            conductivity = (1 - inner**m) ** 2
        else:
            conductivity = (1 - inner**m) ** 2  # ORIGIN
        return (conductivity - torch.tensor([0.7, 0.2, 0.1])).pow(2).sum()


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
    true["s"][0] = math.inf
    return true
