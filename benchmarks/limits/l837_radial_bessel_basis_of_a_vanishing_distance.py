"""Radial Bessel basis sqrt(2 / c) sin(n pi r / c) / r of a graph network, of a distance of 0.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2094185423,
}


class BesselBasis(nn.Module):
    def __init__(self, n, cutoff):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("n", torch.arange(1.0, n + 1))

    def forward(self, r):
        r = r.unsqueeze(-1)
        return (
            math.sqrt(2 / self.cutoff) * torch.sin(self.n * math.pi * r / self.cutoff) / r
        )  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 1.1, 2.3]))
        self.mix = nn.Parameter(torch.tensor([0.5, -0.3, 0.2]))
        self.basis = BesselBasis(3, 4.0)

    def forward(self, fixed):
        y = torch.tensor([0.2, 0.5, -0.1])
        if fixed:
            k = self.basis.n * math.pi / 4
            zero = math.sqrt(0.5) * k * (1 - (k * self.r[0]) ** 2 / 6)
            out = torch.cat([zero[None], self.basis(self.r[1:])])
        else:
            out = self.basis(self.r)
        return (out @ self.mix - y).pow(2).sum()


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
