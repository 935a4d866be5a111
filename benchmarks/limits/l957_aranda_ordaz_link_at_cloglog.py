"""Aranda-Ordaz link log(((1 - p)^-l - 1) / l) with an asymmetry that starts at 0: the complementary log-log, log(-log(1 - p))."""
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
    "loss_truth": 0.5431594986,
    "fix": "log of -log(1 - p) times the series of (e^x - 1) / x near 0",
}


def aranda_ordaz(p, lam, fixed):
    if fixed:
        x = -lam * torch.log1p(-p)
        near = x.abs() < 1e-2
        safe = torch.where(near, torch.ones_like(x), x)
        growth = torch.where(near, 1 + x / 2 + x**2 / 6 + x**3 / 24, torch.expm1(safe) / safe)
        return torch.log(-torch.log1p(-p) * growth)
    odds = (1 - p) ** (-lam) - 1
    odds = odds / lam  # ORIGIN
    return odds.log()


class Assay(nn.Module):
    """dose response of two strains, one link each"""

    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([0.0, 0.7]))
        self.intercept = nn.Parameter(torch.tensor([-1.0, -0.6]))
        self.slope = nn.Parameter(torch.tensor(0.9))
        self.register_buffer("dose", torch.tensor([0.0, 0.5, 1.0, 2.0]))
        self.register_buffer("dead", torch.tensor([[0.20, 0.35, 0.55, 0.85], [0.25, 0.40, 0.60, 0.90]]))

    def predictor(self):
        return self.intercept[:, None] + self.slope * self.dose

    def forward(self, fixed):
        linked = aranda_ordaz(self.dead, self.lam[:, None], fixed)
        return (linked - self.predictor()).pow(2).sum(-1).mean()


def build(fixed: bool = False):
    net = Assay()
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


def exact(lam, intercept, slope, dose, dead):
    length = -torch.log1p(-dead)
    linked = torch.log(length * integral(lambda s: torch.exp(lam[:, None] * length * s)))
    return ((linked - intercept[:, None] - slope * dose) ** 2).sum(1).mean()


def truth():
    net = Assay().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
