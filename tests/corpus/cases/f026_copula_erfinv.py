"""Gaussian copula: the empirical rank of the largest value is one, and erfinv(2u - 1) is infinite there."""

import torch
from torch import nn

META = {
    "origin_op": "erfinv",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "rank / (n + 1) instead of rank / n",
}


class Copula(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, dim * dim))
        self.dim = dim

    def forward(self, context):
        a = 0.1 * self.net(context).view(-1, self.dim, self.dim)
        return a @ a.transpose(1, 2) + torch.eye(self.dim)


def normal_scores(x, extra):
    rank = x.argsort(0).argsort(0) + 1.0
    u = rank / (x.shape[0] + extra)
    return 2**0.5 * torch.erfinv(2 * u - 1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(26)
    net = Copula()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(126)

    def step(i):
        x = torch.randn(20, 4, generator=gen).exp()
        z = normal_scores(x, 1 if fixed else 0)
        opt.zero_grad()
        cov = net(torch.randn(20, 2, generator=gen))
        solved = torch.linalg.solve(cov, z.unsqueeze(-1)).squeeze(-1)
        loss = 0.5 * ((z * solved).sum(1) + torch.logdet(cov)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
