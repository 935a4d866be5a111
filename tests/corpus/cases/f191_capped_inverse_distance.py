"""Inverse-distance weights are capped at a hundred by clamp; a query that hits a support point has distance zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div",),
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the distance instead",
}


class Idw(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, q, pts, val):
        d2 = (q[:, None] + self.shift - pts[None]).square().sum(-1)
        if self.safe:
            d2 = d2.clamp(min=1e-2)
        w = (1 / d2).clamp(max=100.0)  # ORIGIN
        return (w @ val) / w.sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(407)
    net = Idw(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(907)

    def step(i):
        opt.zero_grad()
        pts = torch.rand(9, 2, generator=gen)
        val = pts.sum(-1)
        q = torch.rand(5, 2, generator=gen)
        if i == 2:
            net.shift.data.zero_()
            q[1] = pts[4]
        loss = F.mse_loss(net(q, pts, val), q.sum(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
