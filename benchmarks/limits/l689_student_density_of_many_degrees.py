"""Normaliser of Student's t, gamma((n + 1) / 2) / (sqrt(n pi) gamma(n / 2)), of 250 degrees of
freedom in a helper.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.985760317,
}


def gamma(x):
    return torch.exp(torch.lgamma(x))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Parameter(torch.tensor([3.0, 250.0]))
        self.scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, fixed):
        x = torch.tensor([0.5, -1.3]) / self.scale
        n = self.n
        if fixed:
            c = torch.exp(torch.lgamma((n + 1) / 2) - torch.lgamma(n / 2)) / torch.sqrt(n * math.pi)
        else:
            c = gamma((n + 1) / 2) / (torch.sqrt(n * math.pi) * gamma(n / 2))
        density = c * (1 + x**2 / n) ** (-(n + 1) / 2) / self.scale
        return -torch.log(density).sum()


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
