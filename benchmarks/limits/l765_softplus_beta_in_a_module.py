"""A module Softplus with log1p(exp(beta x)) / beta in forward, used for two heads; one head gives
200.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.004442832,
}


class Softplus(nn.Module):
    def __init__(self, beta=1.0):
        super().__init__()
        self.beta = beta

    def forward(self, x):
        return (self.beta * x).exp().log1p() / self.beta  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = Softplus(beta=2.0)
        self.mean = nn.Parameter(torch.tensor([0.5, 100.0]))
        self.scale = nn.Parameter(torch.tensor([-1.0, 0.3]))

    def forward(self, fixed):
        act = (lambda x: F.softplus(x, beta=2.0)) if fixed else self.act
        return ((act(self.mean) - torch.tensor([1.0, 90.0])) / act(self.scale)).pow(2).mean() / 100


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
