"""Two faults in one step: log-likelihood of a two-component mixture at a point 30 sigma away: log(0);
and the same quotient written twice on one line, value and square.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["log", "div"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 134.7725308,
}


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.0, 2.0]))

    def forward(self, fixed):
        y = torch.tensor([30.0, 0.5, 1.0])
        if fixed:
            like = torch.logaddexp(math.log(0.4) - (y - self.mu[0]) ** 2 / 2, math.log(0.6) - (y - self.mu[1]) ** 2 / 2)
        else:
            like = torch.log(0.4 * torch.exp(-((y - self.mu[0]) ** 2) / 2) + 0.6 * torch.exp(-((y - self.mu[1]) ** 2) / 2))  # ORIGIN
        loss = -like.mean()
        return loss


class Box(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.9, 2.0]))

    def forward(self, fixed):
        if fixed:
            spread = torch.sinc(self.k / math.pi) - torch.sinc(self.k / math.pi) ** 2 + self.k
        else:
            spread = torch.sin(self.k) / self.k - (torch.sin(self.k) / self.k) ** 2 + self.k  # ORIGIN
        loss = (spread - 0.5).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Mixture()
        self.second = Box()

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
    mu = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([30.0, 0.5, 1.0])
    like = torch.logaddexp(math.log(0.4) - (y - mu[0]) ** 2 / 2, math.log(0.6) - (y - mu[1]) ** 2 / 2)
    loss = -like.mean()
    dmu_, = torch.autograd.grad(loss, [mu])
    return {"first.mu": dmu_}


def truth_second():
    k = torch.tensor([0.0, 0.9, 2.0], dtype=torch.float64, requires_grad=True)
    spread = torch.sinc(k / math.pi) - torch.sinc(k / math.pi) ** 2 + k
    loss = (spread - 0.5).pow(2).sum()
    dk_, = torch.autograd.grad(loss, [k])
    return {"second.k": dk_}


def truth():
    return {**truth_first(), **truth_second()}
