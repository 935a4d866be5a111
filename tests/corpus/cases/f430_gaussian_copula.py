"""Gaussian copula: the empirical rank n/n is one, and its normal quantile is infinite."""

import torch
from torch import nn
from torch.distributions import Normal

META = {
    "origin_op": "erfinv",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "ranks divided by n + 1",
}


def ranks(x):
    return x.argsort(0).argsort(0).float() + 1


class Copula(nn.Module):
    def __init__(self, d=3):
        super().__init__()
        self.raw = nn.Parameter(0.1 * torch.randn(d, d))
        self.normal = Normal(0.0, 1.0)

    def forward(self, u):
        z = self.normal.icdf(u)  # ORIGIN
        chol = torch.tril(self.raw, -1) + torch.diag(torch.exp(self.raw.diagonal()))
        white = torch.linalg.solve_triangular(chol, z.T, upper=False)
        return (0.5 * white.pow(2).sum(0) + self.raw.diagonal().sum()).mean()


def build(fixed: bool = False):
    torch.manual_seed(61)
    net = Copula()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2) if False else torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(62)

    def step(i):
        x = torch.randn(25, 3, generator=gen)
        u = ranks(x) / (26 if fixed else 25)
        loss = net(u)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
