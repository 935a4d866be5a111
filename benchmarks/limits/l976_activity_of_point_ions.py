"""Free energy of Debye and Hueckel, 3 (log(1 + x) - x + x^2 / 2) / x^3 with x = kappa a, of a salt whose ion size starts at 0: 1."""
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
    "loss_truth": 0.004154457507,
    "fix": "the series 1 - 3 x / 4 + 3 x^2 / 5 near 0",
}


class Electrolyte(nn.Module):
    BJERRUM = 0.714

    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.tensor([0.0, 0.7, 0.5]))
        self.charge2 = nn.Parameter(torch.tensor([1.0, 2.0, 1.5]))
        self.register_buffer("kappa", torch.tensor([0.8, 1.2, 1.9, 2.5]))
        self.register_buffer("measured", torch.tensor([[-0.2, -0.3, -0.4, -0.5], [-0.3, -0.3, -0.5, -0.6], [-0.2, -0.3, -0.5, -0.6]]))

    def tau(self, x, fixed):
        if fixed:
            near = x < 2e-2
            safe = torch.where(near, torch.ones_like(x), x)
            closed = 3 * (torch.log1p(safe) - safe + safe**2 / 2) / safe**3
            return torch.where(near, 1 - 3 * x / 4 + 3 * x**2 / 5, closed)
        bracket = torch.log(1 + x) - x + 0.5 * x * x
        return 3 * bracket / x**3  # ORIGIN

    def forward(self, fixed):
        x = torch.outer(self.size, self.kappa)
        excess = -self.charge2[:, None] * self.BJERRUM * self.kappa / 3 * self.tau(x, fixed)
        return F.mse_loss(excess, self.measured)


def build(fixed: bool = False):
    net = Electrolyte()
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


def exact(size, charge2, kappa, measured):
    x = size[:, None] * kappa
    tau = 3 * integral(lambda s: s**2 / (1 + x * s))  # log(1 + x) - x + x^2 / 2 = int_0^x t^2 / (1 + t) dt
    return ((-charge2[:, None] * 0.714 * kappa / 3 * tau - measured) ** 2).mean()


def truth():
    net = Electrolyte().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
