"""Two faults in one step: tanh written with exponentials at an activation of 95: inf / inf;
and squashed gaussian log(1 - tanh(u)^2) at u = 12, where tanh has rounded to 1.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["exp", "log"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": -6.327396416,
}


class Activation(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([95.0, 0.4, -0.9]))

    def forward(self, fixed):
        if fixed:
            y = torch.tanh(self.x)
        else:
            y = (torch.exp(self.x) - torch.exp(-self.x)) / (torch.exp(self.x) + torch.exp(-self.x))  # ORIGIN
        loss = (y - 0.3).pow(2).sum()
        return loss


class Squashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([12.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            correction = 2 * (math.log(2) - self.u - nn.functional.softplus(-2 * self.u))
        else:
            correction = torch.log(1 - torch.tanh(self.u) ** 2)  # ORIGIN
        loss = correction.mean()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Activation()
        self.second = Squashed()

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
    x = torch.tensor([95.0, 0.4, -0.9], dtype=torch.float64, requires_grad=True)
    y = torch.tanh(x)
    loss = (y - 0.3).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"first.x": dx_}


def truth_second():
    u = torch.tensor([12.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)
    correction = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
    loss = correction.mean()
    du_, = torch.autograd.grad(loss, [u])
    return {"second.u": du_}


def truth():
    return {**truth_first(), **truth_second()}
