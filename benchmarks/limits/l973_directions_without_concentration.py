"""Reparametrised von Mises-Fisher sample, w = 1 + log(u + (1 - u) e^-2k) / k, with a concentration of 0: 2 u - 1."""
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
    "loss_truth": 0.3636793007,
    "fix": "log1p(-(1 - u) (1 - e^-2k)) / k by its series (2 u - 1) + 2 k u (1 - u)",
}


class SphericalLatent(nn.Module):
    """hyperspherical variational embedding with an alignment loss"""

    def __init__(self):
        super().__init__()
        self.kappa = nn.Parameter(torch.tensor([0.0, 4.0]))
        self.offset = nn.Parameter(torch.tensor([0.2, -0.3]))
        self.register_buffer("u", torch.tensor([[0.2, 0.5, 0.9], [0.15, 0.6, 0.75]]))
        self.register_buffer("turn", torch.tensor([[0.3, 1.9, 4.0], [2.2, 5.1, 0.7]]))
        self.register_buffer("positive", torch.tensor([[0.6, 0.0, 0.8], [0.36, 0.48, 0.8]]))

    def sample(self, fixed):
        kappa, u = self.kappa.unsqueeze(-1), self.u
        if fixed:
            near = kappa.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(kappa), kappa)
            w = torch.where(near, 2 * u - 1 + 2 * kappa * u * (1 - u), 1 + torch.log(u + (1 - u) * torch.exp(-2 * safe)) / safe)
        else:
            mixed = u + (1 - u) * torch.exp(-2 * kappa)
            w = 1 + mixed.log() / kappa  # ORIGIN
        tangent = torch.stack([torch.cos(self.turn), torch.sin(self.turn)], dim=-1)
        side = torch.sqrt(1 - w**2).unsqueeze(-1) * tangent
        return torch.cat([side, w.unsqueeze(-1)], dim=-1)

    def forward(self, fixed):
        z = self.sample(fixed)
        alignment = torch.einsum("bsd,bd->bs", z, self.positive) + self.offset[:, None]
        return F.softplus(-3 * alignment).mean()


def build(fixed: bool = False):
    net = SphericalLatent()
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


def exact(kappa, offset, u, turn, positive):
    q, k = 1 - u, kappa[:, None]
    shrink = 2 * integral(lambda s: torch.exp(-2 * k * s))  # (1 - e^-2k) / k
    w = 1 - q * shrink * integral(lambda t: 1 / (1 - q * k * shrink * t))  # log(1 - y) = -y int dt / (1 - y t)
    root = (1 - w**2) ** 0.5
    z = torch.stack([root * turn.cos(), root * turn.sin(), w], -1)
    return F.softplus(-3 * ((z * positive[:, None]).sum(-1) + offset[:, None])).mean()


def truth():
    net = SphericalLatent().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
