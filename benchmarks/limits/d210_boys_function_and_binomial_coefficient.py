"""Two faults in one step: boys function of order 0, erf(x) / x, for two charges at the same centre: 2 / sqrt(pi);
and binomial coefficient from exp(lgamma) / exp(lgamma): 60! overflows.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 6.223801858,
}


class Integral(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.6, 1.4]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            f = torch.where(self.x.abs() < 1e-2, 2 / math.sqrt(math.pi) * (1 - self.x**2 / 3 + self.x**4 / 10), torch.erf(small) / small)
        else:
            f = torch.erf(self.x) / self.x  # ORIGIN
        loss = (f - 0.5).pow(2).sum()
        return loss


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Parameter(torch.tensor([60.0, 5.0]))

    def forward(self, fixed):
        if fixed:
            c = torch.exp(torch.lgamma(self.n + 1) - torch.lgamma(self.n - 1))
        else:
            c = torch.exp(torch.lgamma(self.n + 1)) / torch.exp(torch.lgamma(self.n - 1))  # ORIGIN
        loss = (c * torch.tensor([1e-3, 0.1])).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Integral()
        self.second = Counts()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    x = torch.tensor([0.0, 0.6, 1.4], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    f = torch.where(x.abs() < 1e-2, 2 / math.sqrt(math.pi) * (1 - x**2 / 3 + x**4 / 10), torch.erf(small) / small)
    loss = (f - 0.5).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"first.x": dx_}


def truth_second():
    n = torch.tensor([60.0, 5.0], dtype=torch.float64, requires_grad=True)
    c = torch.exp(torch.lgamma(n + 1) - torch.lgamma(n - 1))
    loss = (c * torch.tensor([1e-3, 0.1])).sum()
    dn_, = torch.autograd.grad(loss, [n])
    return {"second.n": dn_}


def truth():
    return {**truth_first(), **truth_second()}
