"""Dispersion damped by Tang and Toennies, (1 - e^-x sum_{k <= 6} x^k / k!) / r^6, x = b r, for a pair at distance 0: 0, with slope b^7 / 5040."""
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
    "loss_truth": 0.07659600353,
    "fix": "the series b^6 (x / 5040 - x^2 / 5760) near 0",
}


class Dispersion(nn.Module):
    ORDER = 6

    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 1.6, 2.3, 3.4]))
        self.b = nn.Parameter(torch.tensor(2.0))
        self.c6 = nn.Parameter(torch.tensor([4.0, 9.0]))
        self.register_buffer("kind", torch.tensor([0, 1, 0, 1]))
        self.register_buffer("energy", torch.tensor([1.2, 0.2, -0.05, 0.0]))

    def damping(self, x):
        term, total = torch.ones_like(x), torch.ones_like(x)
        for k in range(1, self.ORDER + 1):
            term = term * x / k
            total = total + term
        return 1 - torch.exp(-x) * total

    def pair(self, fixed):
        x = self.b * self.r
        if fixed:
            near = x < 5e-2
            r = torch.where(near, torch.ones_like(x), self.r)
            damped = torch.where(near, self.b**6 * (x / 5040 - x**2 / 5760), self.damping(self.b * r) / r**6)
        else:
            damped = self.damping(x) / self.r.pow(self.ORDER)  # ORIGIN
        return torch.exp(-x) - self.c6[self.kind] * damped

    def forward(self, fixed):
        return (self.pair(fixed) - self.energy).square().sum()


def build(fixed: bool = False):
    net = Dispersion()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(r, b, c6, kind, energy):
    x = b * r
    tail = torch.exp(-x) * sum(x ** (k - 6) / math.gamma(1 + k) for k in range(7, 60))  # what the exponential has beyond x^6
    return ((torch.exp(-x) - c6[kind] * b**6 * tail - energy) ** 2).sum()


def truth():
    net = Dispersion().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
