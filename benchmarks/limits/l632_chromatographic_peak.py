"""Exponentially modified Gaussian peak, exp(..) erfc(..): the one is infinite where the other is
0.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "mul",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.01819116557,
}


def peak(t, mu, sigma, lam):
    rise = torch.exp(lam / 2 * (2 * mu + lam * sigma**2 - 2 * t))
    tail = torch.erfc((mu + lam * sigma**2 - t) / (math.sqrt(2) * sigma))
    return lam / 2 * rise * tail  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(5.0))
        self.sigma = nn.Parameter(torch.tensor(0.4))
        self.lam = nn.Parameter(torch.tensor(20.0))

    def forward(self, fixed):
        t = torch.tensor([0.0, 4.6, 5.0, 5.5])
        if fixed:
            z = (self.mu + self.lam * self.sigma**2 - t) / (math.sqrt(2) * self.sigma)
            y = (
                self.lam
                / 2
                * torch.exp(-((t - self.mu) ** 2) / (2 * self.sigma**2))
                * torch.special.erfcx(z)
            )
        else:
            y = peak(t, self.mu, self.sigma, self.lam)
        return (y - torch.tensor([0.0, 0.5, 1.0, 0.4])).pow(2).sum()


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
