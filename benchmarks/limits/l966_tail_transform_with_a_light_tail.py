"""Tail-transform flow, s (erfc(|z| / sqrt 2)^-l - 1) / l, with a tail index that starts at 0: -s log erfc(|z| / sqrt 2)."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3319815599,
    "fix": "-log erfc(",
}


class TailTransform(nn.Module):
    """heavy tails for the base density of a flow"""

    def __init__(self):
        super().__init__()
        self.tail = nn.Parameter(torch.tensor([0.0, 0.25, 0.5]))
        self.scale = nn.Parameter(torch.tensor([1.0, 0.8, 1.3]))
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("z", torch.tensor([[0.4, -1.1, 0.8], [-1.6, 0.3, -0.5], [2.1, 1.4, -1.9]]))
        self.register_buffer("quantiles", torch.tensor([[0.5, -1.5, 1.4], [-2.0, 0.2, -0.6], [3.5, 2.4, -5.0]]))

    def push(self, fixed):
        mass = torch.erfc(self.z.abs() / math.sqrt(2))
        if fixed:
            x = -self.tail * mass.log()
            near = x.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(x), x)
            body = -mass.log() * torch.where(near, 1 + x / 2 + x**2 / 6, torch.expm1(safe) / safe)
        else:
            heavy = mass.pow(-self.tail).sub(1)
            body = heavy / self.tail  # ORIGIN
        return self.shift + self.scale * self.z.sign() * body

    def forward(self, fixed):
        return F.smooth_l1_loss(self.push(fixed), self.quantiles)


def build(fixed: bool = False):
    net = TailTransform()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

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


def exact(tail, scale, shift, z, quantiles):
    length = -torch.log(torch.erfc(z.abs() / 2**0.5))
    body = length * integral(lambda s: torch.exp(tail * length * s))
    return F.smooth_l1_loss(shift + scale * z.sign() * body, quantiles)


def truth():
    net = TailTransform().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
