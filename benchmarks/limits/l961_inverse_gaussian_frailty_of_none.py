"""Survival with inverse Gaussian frailty, log S = (1 - sqrt(1 + 2 theta H)) / theta, whose frailty variance starts at 0 in one centre: -H."""
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
    "loss_truth": 1.50055152,
    "fix": "-2 H / (1 + sqrt(1 + 2 theta H))",
}


class FrailtyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, 0.8]))
        self.beta = nn.Parameter(torch.tensor([0.5, -0.3]))
        self.log_base = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("x", torch.tensor([[1.0, 0.2], [0.0, 1.0], [-0.5, 0.4], [0.7, -1.2]]))
        self.register_buffer("time", torch.tensor([1.5, 3.0, 0.8, 2.2]))
        self.register_buffer("event", torch.tensor([1.0, 0.0, 1.0, 1.0]))
        self.register_buffer("centre", torch.tensor([0, 0, 1, 1]))

    def log_survival(self, cumulative, fixed):
        theta = self.theta[self.centre]
        root = torch.sqrt(1 + 2 * theta * cumulative)
        if fixed:
            return -2 * cumulative / (1 + root), root
        log_s = torch.div(1 - root, theta)  # ORIGIN
        return log_s, root

    def forward(self, fixed):
        log_hazard = self.log_base + self.x @ self.beta
        cumulative = log_hazard.exp() * self.time
        log_s, root = self.log_survival(cumulative, fixed)
        log_lik = self.event * (log_hazard - root.log()) + log_s
        return -log_lik.mean()


def build(fixed: bool = False):
    net = FrailtyModel()
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


def exact(theta, beta, log_base, x, time, event, centre):
    log_hazard = log_base + x @ beta
    big = log_hazard.exp() * time
    root = (1 + 2 * theta[centre] * big) ** 0.5
    log_s = -big * integral(lambda t: (1 + 2 * theta[centre] * big * t) ** -0.5)
    return -(event * (log_hazard - root.log()) + log_s).mean()


def truth():
    net = FrailtyModel().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
