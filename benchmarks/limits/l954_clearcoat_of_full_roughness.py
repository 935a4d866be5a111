"""Clearcoat lobe (generalised Trowbridge-Reitz of exponent 1), (a^2 - 1) / log a^2, of a material whose gloss is exactly 1: the limit is 1."""
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
    "loss_truth": 0.1583076946,
    "fix": "the series of u / log(1 + u) near u = 0",
}


def clearcoat_density(cos_half, alpha, fixed):
    a2 = alpha * alpha
    excess = a2 - 1
    if fixed:
        near = excess.abs() < 1e-2
        u = torch.where(near, torch.ones_like(excess), excess)
        ratio = torch.where(near, 1 + excess / 2 - excess**2 / 12 + excess**3 / 24, u / torch.log1p(u))
    else:
        ratio = excess / torch.log(a2)  # ORIGIN
    return ratio / (math.pi * (1 + excess * cos_half**2))


class Material(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([1.0, 0.25, 0.6]))
        self.strength = nn.Parameter(torch.tensor([0.8, 0.3, 0.5]))
        self.register_buffer("cos_half", torch.tensor([[0.95, 0.7, 0.4, 0.1]]))
        self.register_buffer("radiance", torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.9, 0.2, 0.1, 0.0], [0.4, 0.2, 0.1, 0.1]]))

    def render(self, fixed):
        lobe = clearcoat_density(self.cos_half, self.alpha[:, None], fixed)
        return self.strength[:, None] * lobe * self.cos_half.clamp(min=0.0)

    def forward(self, fixed):
        return (self.render(fixed) - self.radiance).square().mean(1).sum()


def build(fixed: bool = False):
    net = Material()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

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


def exact(alpha, strength, cos_half, radiance):
    u = alpha[:, None] ** 2 - 1
    ratio = 1 / integral(lambda t: 1 / (1 + t * u))  # log(1 + u) / u is this integral
    return ((strength[:, None] * ratio / (math.pi * (1 + u * cos_half**2)) * cos_half - radiance) ** 2).mean(1).sum()


def truth():
    net = Material().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
