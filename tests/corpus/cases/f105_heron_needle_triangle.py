"""Mesh areas by Heron's formula: for a needle of a triangle s - c rounds below zero, and the root of the product is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "half the length of the cross product, with an epsilon under its root",
}


class MeshOffset(nn.Module):
    """Moves the vertices of free triangles; a fixed one keeps its own."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 3))

    def forward(self, tri, free):
        return tri + 0.05 * free * self.net(tri)


def area(tri, by_cross):
    u, v = tri[:, 1] - tri[:, 0], tri[:, 2] - tri[:, 0]
    if by_cross:
        return 0.5 * (torch.linalg.cross(u, v).square().sum(-1) + 1e-12).sqrt()
    a, b, c = ((e.square().sum(-1) + 1e-12).sqrt() for e in (u, v, v - u))
    s = (a + b + c) / 2
    return torch.sqrt(s * (s - a) * (s - b) * (s - c))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(105)
    net = MeshOffset()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(205)

    def step(i):
        tri, free = torch.randn(12, 3, 3, generator=gen), torch.ones(12, 1, 1)
        if i == 4:  # slivers that the remesher left behind
            tri[3:9, 2] = tri[3:9, 0] + torch.rand(6, 1, generator=gen) * (tri[3:9, 1] - tri[3:9, 0])
            free[3:9] = 0.0
        opt.zero_grad()
        loss = (area(net(tri, free), fixed) - 1.0).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
