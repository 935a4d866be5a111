"""Mahalanobis distance by einsum and a root: a sample that lies exactly on its prototype."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "add an epsilon under the root",
}


class Prototypes(nn.Module):
    def __init__(self, k, d, eps):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(k, d))
        self.chol = nn.Parameter(torch.eye(d))
        self.eps = eps

    def forward(self, x):
        d = x[:, None] - self.mu
        return torch.einsum("nkd,de,fe,nkf->nk", d, self.chol, self.chol, d).add(self.eps).sqrt()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(921)
    net = Prototypes(3, 4, 1e-8 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(926)

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(8, 4, generator=gen), torch.arange(8) % 3
        if i == 1:
            x[2] = net.mu.detach()[2]
        loss = F.cross_entropy(-net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
