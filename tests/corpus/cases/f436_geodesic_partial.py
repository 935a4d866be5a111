"""Geodesic rotation loss, its inverse cosine handed over as a value: identical rotations have cosine one, where acos has no derivative."""

import functools

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "clamp strictly inside (-1, 1)",
}


def angle_between(r1, r2, arc, bound=1.0):
    trace = torch.einsum("bij,bij->b", r1, r2)
    cosine = ((trace - 1) / 2).clamp(-bound, bound)
    return arc(cosine)  # ORIGIN


def yaw(theta):
    c, s, z, o = theta.cos(), theta.sin(), torch.zeros_like(theta), torch.ones_like(theta)
    return torch.stack([c, -s, z, s, c, z, z, z, o], -1).view(-1, 3, 3)


def build(fixed: bool = False):
    torch.manual_seed(73)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1, bias=False))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(74)
    geodesic = functools.partial(angle_between, arc=torch.acos, bound=1 - 1e-6 if fixed else 1.0)

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        target = torch.rand(8, generator=gen) + 0.5
        moving = torch.ones(8)
        if i >= 2:
            moving[5], target[5] = 0.0, 0.0  # a parked car
        loss = geodesic(yaw(net(x).squeeze(-1) * moving), yaw(target)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
