"""Continuous ranked probability score of a Gaussian with a spread of 0: |y - m|.

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
    "loss_truth": 1.698842119,
}


def crps(y, mu, sigma):
    z = (y - mu) / sigma
    pdf = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return sigma * (z * torch.erf(z / math.sqrt(2)) + 2 * pdf - 1 / math.sqrt(math.pi))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.5, 1.0]))
        self.sigma = nn.Parameter(torch.tensor([0.0, 0.6]))

    def forward(self, fixed):
        y = torch.tensor([2.0, 0.7])
        if fixed:
            sure = (y[0] - self.mu[0]).abs() - self.sigma[0] / math.sqrt(math.pi)
            return sure + crps(y[1], self.mu[1], self.sigma[1])
        return crps(y, self.mu, self.sigma).sum()


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
