"""Gaussian splats: a projected 2 by 2 covariance is inverted by the adjugate over the determinant; a splat that
shrank has a determinant that underflows to zero.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("degenerate-matrix", "div-by-tiny"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "dilate the covariance before it is inverted",
}


class Splats(nn.Module):
    def __init__(self, n, dilate):
        super().__init__()
        self.centre = nn.Parameter(torch.rand(n, 2))
        self.log_scale = nn.Parameter(torch.full((n, 2), -1.0))
        self.angle = nn.Parameter(torch.rand(n))
        self.opacity = nn.Parameter(torch.zeros(n))
        self.dilate = dilate

    def conics(self):
        c, s = torch.cos(self.angle), torch.sin(self.angle)
        rot = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
        cov = torch.einsum("nij,nj,nkj->nik", rot, self.log_scale.exp() ** 2, rot) + self.dilate * torch.eye(2)
        a, b, d = cov[:, 0, 0], cov[:, 0, 1], cov[:, 1, 1]
        det = a * d - b * b
        return torch.stack([d / det, -b / det, a / det], -1)  # ORIGIN

    def forward(self, px):
        k, d = self.conics(), px[:, None] - self.centre
        q = k[:, 0] * d[..., 0] ** 2 + 2 * k[:, 1] * d[..., 0] * d[..., 1] + k[:, 2] * d[..., 1] ** 2
        return (torch.exp(-0.5 * q) * self.opacity.sigmoid()).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(642)
    net = Splats(6, 1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(647)

    def step(i):
        opt.zero_grad()
        px = torch.rand(32, 2, generator=gen)
        if i == 2:
            with torch.no_grad():
                net.log_scale[3] -= 28.0  # pruning by shrinking
        loss = (net(px) - px.sum(1)).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
