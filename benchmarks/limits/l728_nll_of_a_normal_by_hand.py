"""Negative log-likelihood of a normal, the density in a class with a pdf method and its logarithm
outside.

Source: well-known fault
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 83.26743531,
}


class Normal:
    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale

    def pdf(self, x):
        z = (x - self.loc) / self.scale
        return torch.exp(-(z**2) / 2) / (self.scale * (2 * math.pi) ** 0.5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(0.0))
        self.raw = nn.Parameter(torch.tensor(-1.0))

    def forward(self, fixed):
        x = torch.tensor([0.1, -0.4, 7.0])
        scale = F.softplus(self.raw)
        if fixed:
            return -torch.distributions.Normal(self.loc, scale).log_prob(x).mean()
        q = Normal(self.loc, scale)
        return -torch.log(q.pdf(x)).mean()  # ORIGIN


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
