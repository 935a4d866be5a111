"""Dihedral angle from two plane normals, each divided by its length; three atoms in a line span no plane."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add an epsilon to the length",
}


class Torsion(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def normal(self, u, v):
        n = torch.linalg.cross(u, v)
        return n / (torch.linalg.norm(n, dim=-1, keepdim=True) + self.eps)  # ORIGIN

    def forward(self, p):
        b = p[:, 1:] - p[:, :-1]
        n1, n2 = self.normal(b[:, 0], b[:, 1]), self.normal(b[:, 1], b[:, 2])
        return (n1 * n2).sum(-1)


class Refiner(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 3))
        self.torsion = Torsion(eps)

    def forward(self, p):
        return self.torsion(p * self.scale.mean(0))


def build(fixed: bool = False):
    torch.manual_seed(712)
    net = Refiner(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(717)

    def step(i):
        opt.zero_grad()
        p = torch.randn(5, 4, 3, generator=gen)
        if i == 2:
            p[1] = torch.arange(4.0)[:, None] * torch.tensor([1.0, 0.0, 0.0])
        loss = (net(p) - 0.5).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
