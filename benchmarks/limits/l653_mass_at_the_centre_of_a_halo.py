"""Acceleration (log(1 + x) - x / (1 + x)) / x^2 in a dark halo at its very centre: a half.

Source: well-known fault
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.6860620416,
}


class Halo(nn.Module):
    def __init__(self):
        super().__init__()
        self.rs = nn.Parameter(torch.tensor(2.0))
        self.rho = nn.Parameter(torch.tensor(0.7))

    def acceleration(self, r):
        x = r / self.rs
        mass = torch.log(1 + x) - x / (1 + x)
        return 4 * math.pi * self.rho * self.rs * mass / x**2  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.halo = Halo()

    def forward(self, fixed):
        r = torch.tensor([0.0, 1.0, 5.0])
        if fixed:
            x = r / self.halo.rs
            near = x < 1e-3
            w = torch.where(near, torch.ones_like(x), x)
            shape = torch.where(
                near, 0.5 - 2 * x / 3 + 3 * x**2 / 4, (torch.log1p(w) - w / (1 + w)) / w**2
            )
            a = 4 * math.pi * self.halo.rho * self.halo.rs * shape
        else:
            a = self.halo.acceleration(r)
        return F.mse_loss(a, torch.tensor([8.0, 4.0, 1.0]))


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
