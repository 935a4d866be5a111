"""Two faults in one step: scale as the root of a learned variance that starts at 0;
and censored observation log(erfc(x)) at x = 12: erfc is 0 in float32.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["sqrt", "log"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 74.19012283,
}


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.0, 0.8]))

    def forward(self, fixed):
        if fixed:
            s = torch.sqrt(self.v + 1e-6)
        else:
            s = torch.sqrt(self.v)  # ORIGIN
        loss = (s - torch.tensor([0.5, 1.1])).pow(2).sum()
        return loss


class Tobit(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([12.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            loss = -(torch.special.log_ndtr(-self.x * math.sqrt(2)) + math.log(2)).mean()
        else:
            loss = -torch.log(torch.erfc(self.x)).mean()  # ORIGIN
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Scale()
        self.second = Tobit()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    v = torch.tensor([0.0, 0.8], dtype=torch.float64, requires_grad=True)
    s = torch.sqrt(v + 1e-6)
    loss = (s - torch.tensor([0.5, 1.1])).pow(2).sum()
    dv_, = torch.autograd.grad(loss, [v])
    dv_[0] = -float("inf")  # of (sqrt(v) - 0.5)^2 at v = 0
    return {"first.v": dv_}


def truth_second():
    x = torch.tensor([12.0, 0.5], dtype=torch.float64, requires_grad=True)
    loss = -(torch.special.log_ndtr(-x * math.sqrt(2)) + math.log(2)).mean()
    dx_, = torch.autograd.grad(loss, [x])
    return {"second.x": dx_}


def truth():
    return {**truth_first(), **truth_second()}
