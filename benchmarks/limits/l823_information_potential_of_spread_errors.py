"""Entropy of errors by a Parzen window, -log(mean exp(-(e_i - e_j)^2 / (2 s^2))) against references
that lie far away.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.9979175896,
}


class Potential(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, e, reference):
        gap = e[:, None] - reference[None, :]
        kernel = torch.exp(-(gap**2) / (2 * self.width**2))
        return -torch.log(kernel.mean())  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([0.5, 0.7]))
        self.potential = Potential(0.1)

    def forward(self, fixed):
        reference = torch.tensor([2.1, 2.4, 2.2])
        if fixed:
            gap = self.e[:, None] - reference[None, :]
            return (math.log(6) - torch.logsumexp((-(gap**2) / 0.02).flatten(), 0)) * 0.01
        return self.potential(self.e, reference) * 0.01


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
