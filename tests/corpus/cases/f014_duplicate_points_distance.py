"""Pairwise distances of a point cloud with sqrt by hand; voxel rounding made two points of one cloud coincide."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon under the root",
}


class Deform(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU())
        self.out = nn.Linear(48, 3)

    def forward(self, pts):
        h = self.point(pts)
        pooled = h.amax(1, keepdim=True).expand_as(h)
        return pts + 0.1 * self.out(torch.cat([h, pooled], -1))


def edge_lengths(pts, eps):
    a, b = torch.triu_indices(pts.shape[1], pts.shape[1], offset=1)
    diff = pts[:, a] - pts[:, b]
    return diff.pow(2).sum(-1).add(eps).sqrt()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(14)
    net = Deform()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(114)
    eps = 1e-8 if fixed else 0.0

    def step(i):
        pts = torch.randn(2, 16, 3, generator=gen)
        if i == 3:
            pts[1, 5] = pts[1, 11]
        with torch.no_grad():
            before = edge_lengths(pts, eps)
        opt.zero_grad()
        loss = (edge_lengths(net(pts), eps) - 1.1 * before).abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
