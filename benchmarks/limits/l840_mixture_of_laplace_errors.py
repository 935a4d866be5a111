"""Mixture of two Laplace densities in a head: log(sum w exp(-|y - m| / b) / (2 b)), of a target far
from both.

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
    "loss_truth": 0.9300184914,
}


class LaplaceMixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.m = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.log_b = nn.Parameter(torch.tensor([-2.0, -2.5]))

    def forward(self, y):
        b = torch.exp(self.log_b)
        w = torch.softmax(self.mix, -1)
        density = w / (2 * b) * torch.exp(-(y[:, None] - self.m).abs() / b)
        return -torch.log(density.sum(-1))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = LaplaceMixture()

    def forward(self, fixed):
        y = torch.tensor([0.4, 25.0])
        h = self.head
        if fixed:
            logs = torch.log_softmax(h.mix, -1) - h.log_b - math.log(2)
            logs = logs - (y[:, None] - h.m).abs() / torch.exp(h.log_b)
            return -torch.logsumexp(logs, -1).mean() * 0.01
        return h(y).mean() * 0.01


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
