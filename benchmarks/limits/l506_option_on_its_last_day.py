"""Black-Scholes with a time of 0 for one option in the money: value s - k, delta 1.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "zero-divisor",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.005260783859,
}


def phi(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def call(s, k, sigma, t):
    root = sigma * torch.sqrt(t)
    d1 = torch.log(s / k) / root + root / 2  # ORIGIN
    return s * phi(d1) - k * phi(d1 - root)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([1.3, 1.0]))
        self.sigma = nn.Parameter(torch.tensor([0.2, 0.3]))
        self.register_buffer("t", torch.tensor([0.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            late = self.s[0] - 1.1 + 0 * self.sigma[0]
            price = torch.stack([late, call(self.s[1], 1.1, self.sigma[1], self.t[1])])
        else:
            price = call(self.s, 1.1, self.sigma, self.t)
        return (price - torch.tensor([0.25, 0.1])).pow(2).sum()


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
