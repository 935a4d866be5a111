"""Points are moved by a learned rigid motion and projected by a pinhole camera; a point in the camera plane has depth exactly zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "keep the depth away from zero before projecting",
}


class Rig(nn.Module):
    def __init__(self, near):
        super().__init__()
        self.near = near
        self.shift = nn.Parameter(torch.zeros(2))
        self.refine = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, points):
        xy, z = points[..., :2] + self.shift, points[..., 2:]
        if self.near:
            z = z.clamp(min=self.near)
        uv = xy / z  # ORIGIN
        uv = uv * 1.2 + 0.5
        return uv + 0.1 * self.refine(uv)


def build(fixed: bool = False):
    torch.manual_seed(204)
    net = Rig(0.05 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(704)

    def step(i):
        opt.zero_grad()
        points = torch.rand(4, 20, 3, generator=gen) + torch.tensor([-0.5, -0.5, 1.0])
        target = points[..., :2] / points[..., 2:]
        if i == 2:
            points[1, 3, 2] = 0.0
        loss = F.smooth_l1_loss(net(points), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
