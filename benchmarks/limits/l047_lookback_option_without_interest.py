"""Floating-strike lookback call, s^2 / (2 r) ((S/m)^(-2 r / s^2) N(y) - e^(r T) N(-a)), in a currency whose rate is exactly 0: a finite premium."""
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
    "loss_truth": 0.1149347272,
    "fix": "the derivative of the bracket at r / 2 near 0",
}


def cdf(x):
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def density(x):
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def bracket_slope(log_m, rate, sigma, expiry):
    speed = math.sqrt(expiry) / sigma
    a = log_m / (sigma * math.sqrt(expiry)) + (rate + sigma**2 / 2) * speed
    y = 2 * rate * speed - a
    power = torch.exp(-2 * rate * log_m / sigma**2)
    return power * (density(y) * speed - 2 * log_m / sigma**2 * cdf(y)) + torch.exp(rate * expiry) * (density(a) * speed - expiry * cdf(-a))


def lookback_call(spot, low, rate, sigma, expiry, fixed):
    root = sigma * math.sqrt(expiry)
    log_m = torch.log(spot / low)
    a = (log_m + (rate + sigma**2 / 2) * expiry) / root
    discount = torch.exp(-rate * expiry)
    reflected = (spot / low) ** (-2 * rate / sigma**2) * cdf(2 * rate * math.sqrt(expiry) / sigma - a)
    bracket = reflected - torch.exp(rate * expiry) * cdf(-a)
    if fixed:
        near = rate.abs() < 1e-3
        safe = torch.where(near, torch.ones_like(rate), rate)
        premium = sigma**2 / 2 * torch.where(near, bracket_slope(log_m, rate / 2, sigma, expiry), bracket / safe)
    else:
        premium = sigma**2 / (2 * rate)  # ORIGIN
        premium = premium * bracket
    return spot * cdf(a) - low * discount * cdf(a - root) + spot * discount * premium


class LookbackBook(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.0, 0.04]))
        self.sigma = nn.Parameter(torch.tensor([0.25, 0.3]))
        self.register_buffer("spot", torch.tensor([[1.0, 1.1, 1.3], [1.0, 1.2, 1.05]]))
        self.register_buffer("low", torch.tensor([[1.0, 0.95, 1.0], [0.9, 1.0, 1.0]]))
        self.register_buffer("quote", torch.tensor([[0.2, 0.25, 0.35], [0.3, 0.3, 0.3]]))

    def forward(self, fixed):
        desk = torch.func.vmap(lambda s, m, r, v: lookback_call(s, m, r, v, 1.5, fixed))
        return 100 * (desk(self.spot, self.low, self.rate, self.sigma) - self.quote).square().mean()


def build(fixed: bool = False):
    net = LookbackBook()
    opt = torch.optim.Adam(net.parameters(), lr=1e-5)

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


def exact(rate, sigma, spot, low, quote):
    r, v, length, t = rate[:, None], sigma[:, None], torch.log(spot / low), 1.5
    at = lambda x: (length + (x + v**2 / 2) * t) / (v * t**0.5)

    def slope(x):  # of the bracket in the rate; the bracket over r is its integral
        a, c = at(x), t**0.5 / v
        y, g = 2 * x * c - a, torch.exp(-2 * x * length / v**2)
        return g * (density(y) * c - 2 * length / v**2 * cdf(y)) + torch.exp(x * t) * (density(a) * c - t * cdf(-a))

    a, d = at(r), torch.exp(-r * t)
    price = spot * cdf(a) - low * d * cdf(a - v * t**0.5) + spot * d * v**2 / 2 * integral(lambda s: slope(r * s))
    return 100 * ((price - quote) ** 2).mean()


def truth():
    net = LookbackBook().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
