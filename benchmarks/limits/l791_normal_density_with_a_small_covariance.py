"""Multivariate normal density by its formula, determinant and all, and its logarithm; standard
deviations of 1e-9.

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
    "loss_truth": -0.058359054,
}


def density(x, mean, cov):
    k = len(mean)
    d = x - mean
    quad = d @ torch.linalg.solve(cov, d)
    return torch.exp(-0.5 * quad) / torch.sqrt((2 * math.pi) ** k * torch.det(cov))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([1e-9, 2e-9, -1e-9]))
        self.log_std = nn.Parameter(torch.tensor([-20.0, -20.5, -21.0]))

    def forward(self, fixed):
        x = torch.tensor([1.5e-9, 1e-9, -1.2e-9])
        if fixed:
            z = (x - self.mean) * torch.exp(-self.log_std)
            logp = -0.5 * (z**2).sum() - self.log_std.sum() - 1.5 * math.log(2 * math.pi)
            return -logp * 1e-3
        cov = torch.diag(torch.exp(self.log_std) ** 2)
        return -torch.log(density(x, self.mean, cov)) * 1e-3  # ORIGIN


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
