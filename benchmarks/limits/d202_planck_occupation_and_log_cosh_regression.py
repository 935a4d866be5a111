"""Two faults in one step: mean energy of an oscillator, x / (e^x - 1), with a frequency that starts at 0;
and log-cosh loss at a residual of 200.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "cosh"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 66.7276936,
}


class Oscillator(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            energy = torch.where(self.x.abs() < 1e-2, 1 - self.x / 2 + self.x**2 / 12, small / torch.expm1(small))
        else:
            energy = self.x / (torch.exp(self.x) - 1)  # ORIGIN
        loss = (energy - 0.3).pow(2).mean()
        return loss


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.tensor([200.0, 0.5, -0.3]))

    def forward(self, fixed):
        if fixed:
            loss = (self.m.abs() + nn.functional.softplus(-2 * self.m.abs()) - math.log(2)).mean()
        else:
            loss = torch.log(torch.cosh(self.m)).mean()  # ORIGIN
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Oscillator()
        self.second = Regression()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    energy = torch.where(x.abs() < 1e-2, 1 - x / 2 + x**2 / 12, small / torch.expm1(small))
    loss = (energy - 0.3).pow(2).mean()
    dx_, = torch.autograd.grad(loss, [x])
    return {"first.x": dx_}


def truth_second():
    m = torch.tensor([200.0, 0.5, -0.3], dtype=torch.float64, requires_grad=True)
    loss = (m.abs() + nn.functional.softplus(-2 * m.abs()) - math.log(2)).mean()
    dm_, = torch.autograd.grad(loss, [m])
    return {"second.m": dm_}


def truth():
    return {**truth_first(), **truth_second()}
