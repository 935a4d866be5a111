"""Branch-free conversion of a rotation matrix to a quaternion: sqrt(clamp(1 + m00 - m11 - m22, 0)) is zero for the
identity.
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("where-grad-trap",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "clamp at a small positive number",
}


def quaternion(m, floor):
    d = m.diagonal(dim1=-2, dim2=-1)
    signs = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    q = torch.sqrt((1 + d @ signs.T).clamp(min=floor)) / 2  # ORIGIN
    skew = torch.stack([m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1]], -1)
    return torch.cat([q[:, :1], torch.copysign(q[:, 1:], skew)], -1)


class Pose(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor, self.delta = floor, nn.Linear(4, 3)

    def forward(self, x):
        a = self.delta(x)
        c, s = torch.cos(a), torch.sin(a)
        z = torch.zeros_like(c[:, 0])
        rows = [c[:, 0], -s[:, 0], z, s[:, 0], c[:, 0], z, z, z, z + 1]
        return quaternion(torch.stack(rows, -1).view(-1, 3, 3), self.floor)


def build(fixed: bool = False):
    torch.manual_seed(719)
    net = Pose(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(724)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        loss = (net(x) - torch.tensor([0.9, 0, 0, 0.4])).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
