"""Texture lookup by barycentric coordinates divides by twice the signed area; a sliver has area zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "keep the area away from zero",
}


class Tex(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.verts = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))

    def forward(self, p, warp):
        a, b, c = self.verts @ warp
        den = (b[1] - c[1]) * (a[0] - c[0]) + (c[0] - b[0]) * (a[1] - c[1]) + self.eps
        u = ((b[1] - c[1]) * (p[:, 0] - c[0]) + (c[0] - b[0]) * (p[:, 1] - c[1])) / den  # ORIGIN
        return u


def build(fixed: bool = False):
    torch.manual_seed(501)
    net = Tex(1e-2 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(1001)

    def step(i):
        opt.zero_grad()
        p = torch.rand(8, 2, generator=gen)
        warp = torch.eye(2)
        if i == 2:
            warp[1, 1] = 0.0
        loss = (net(p, warp) - 0.3).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
