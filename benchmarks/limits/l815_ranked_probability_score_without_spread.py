"""Continuous ranked probability score of a normal forecast, sigma (z (2 Phi(z) - 1) + 2 phi(z) - 1
/ sqrt(pi)), with a spread of 0.

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
    "loss_truth": 0.4285304941,
}


class CRPS(nn.Module):
    def forward(self, mean, sigma, y):
        z = (y - mean) / sigma  # ORIGIN
        cdf = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        pdf = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return (sigma * (z * (2 * cdf - 1) + 2 * pdf - 1 / math.sqrt(math.pi))).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.3, 1.0]))
        self.sigma = nn.Parameter(torch.tensor([0.0, 0.7]))
        self.score = CRPS()

    def forward(self, fixed):
        y = torch.tensor([0.8, 0.4])
        if fixed:
            first = (y[0] - self.mean[0]).abs() - self.sigma[0] / math.sqrt(math.pi)
            return (first + self.score(self.mean[1], self.sigma[1], y[1])) / 2
        return self.score(self.mean, self.sigma, y)


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
