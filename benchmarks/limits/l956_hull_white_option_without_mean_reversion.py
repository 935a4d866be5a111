"""Bond-option volatility of Hull and White with a mean reversion that starts at 0: s (S - T) sqrt(T) is the limit."""
import math

import numpy as np
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
    "loss_truth": 0.1303047119,
    "fix": "T phi(2 a T) and (S - T) phi(a (S - T)) with phi(x) = -expm1(-x) / x",
}


def decay_factor(rate, tau, fixed):
    """integral of exp(-rate u) over [0, tau]"""
    if fixed:
        x = rate * tau
        near = x.abs() < 1e-2
        safe = torch.where(near, torch.ones_like(x), x)
        return tau * torch.where(near, 1 - x / 2 + x**2 / 6 - x**3 / 24, -torch.expm1(-safe) / safe)
    return (1 - torch.exp(-rate * tau)) / rate  # ORIGIN


class HullWhite(nn.Module):
    NOTIONAL = 100.0

    def __init__(self):
        super().__init__()
        self.reversion = nn.Parameter(torch.tensor([0.0, 0.15]))
        self.sigma = nn.Parameter(torch.tensor([0.011, 0.016]))
        self.register_buffer("expiry", torch.tensor([1.0, 2.0, 5.0]))
        self.register_buffer("maturity", torch.tensor([6.0, 5.0, 10.0]))
        self.register_buffer("quotes", torch.tensor([[2.0, 1.6, 4.4], [1.9, 1.8, 3.0]]))

    def bond_vol(self, fixed):
        a, s = self.reversion.unsqueeze(1), self.sigma.unsqueeze(1)
        tenor = self.maturity - self.expiry
        spread = decay_factor(a, tenor, fixed)
        variance = decay_factor(2 * a, self.expiry, fixed)
        return s * spread * variance.sqrt()

    def forward(self, fixed):
        price = self.NOTIONAL * self.bond_vol(fixed) / math.sqrt(2 * math.pi)
        return torch.mean((price - self.quotes) ** 2)


def build(fixed: bool = False):
    net = HullWhite()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def integral(f):
    """over [0, 1], 60 nodes of Gauss and Legendre"""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    return sum(w / 2 * f((1 + x) / 2) for x, w in zip(nodes.tolist(), weights.tolist()))


def exact(reversion, sigma, expiry, maturity, quotes):
    a, s, tenor = reversion[:, None], sigma[:, None], maturity - expiry
    spread = tenor * integral(lambda u: torch.exp(-a * tenor * u))
    variance = expiry * integral(lambda u: torch.exp(-2 * a * expiry * u))
    return ((100 * s * spread * variance.sqrt() / math.sqrt(2 * math.pi) - quotes) ** 2).mean()


def truth():
    net = HullWhite().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
