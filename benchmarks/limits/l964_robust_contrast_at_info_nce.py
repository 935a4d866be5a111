"""Robust contrastive loss -e^(q s) / q + (lambda (e^s + sum e^n))^q / q with a robustness q that starts at 0: InfoNCE, the two infinities cancel."""
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
    "loss_truth": -1.463659401,
    "fix": "(log A - s) times the series of (e^x - 1) / x, times e^(q s)",
}


class RobustContrast(nn.Module):
    LAMBDA, TEMPERATURE = 0.4, 0.5

    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([0.0, 0.6]))
        self.project = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            self.project.weight.copy_(torch.tensor([[0.6, -0.3, 0.8], [0.2, 0.9, -0.4]]))
        self.register_buffer("anchors", torch.tensor([[[1.0, 0.2, -0.5], [0.3, -0.8, 0.6]], [[-0.4, 0.7, 0.1], [0.9, 0.5, 0.3]]]))
        self.register_buffer("others", torch.tensor([[[0.9, 0.1, -0.3], [0.2, -0.9, 0.8]], [[-0.5, 0.6, 0.3], [1.0, 0.2, 0.1]]]))

    def similarity(self):
        a, b = F.normalize(self.project(self.anchors), dim=-1), F.normalize(self.project(self.others), dim=-1)
        return torch.einsum("vid,vjd->vij", a, b) / self.TEMPERATURE

    def forward(self, fixed):
        s, q = self.similarity(), self.q[:, None]
        positive = s.diagonal(dim1=-2, dim2=-1)
        log_all = math.log(self.LAMBDA) + torch.logsumexp(s, dim=-1)
        if fixed:
            x = q * (log_all - positive)
            near = x.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(x), x)
            growth = torch.where(near, 1 + x / 2 + x**2 / 6 + x**3 / 24, torch.expm1(safe) / safe)
            return ((log_all - positive) * torch.exp(q * positive) * growth).mean()
        attract = -torch.exp(q * positive) / q  # ORIGIN
        repel = torch.exp(q * log_all) / q
        return (attract + repel).mean()


def build(fixed: bool = False):
    net = RobustContrast()
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


def exact(q, project_weight, anchors, others):
    a, b = anchors @ project_weight.T, others @ project_weight.T
    a, b = a / (a**2).sum(-1, keepdim=True) ** 0.5, b / (b**2).sum(-1, keepdim=True) ** 0.5
    s = a @ b.mT / 0.5
    positive = torch.stack([s[:, 0, 0], s[:, 1, 1]], 1)
    gap = torch.log(0.4 * torch.exp(s).sum(-1)) - positive
    return (gap * integral(lambda t: torch.exp(q[:, None] * (positive + gap * t)))).mean()


def truth():
    net = RobustContrast().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
