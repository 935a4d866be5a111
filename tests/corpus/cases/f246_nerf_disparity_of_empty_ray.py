"""Volume rendering: disparity is the reciprocal of depth over opacity, guarded by max(1e-10, .); a ray through
nothing has 0 / 0 inside the guard.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add an epsilon to the accumulated opacity",
}


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, p):
        return F.relu(self.mlp(p)).squeeze(-1)


def march(sigma, t):
    delta = torch.cat([t[1:] - t[:-1], torch.tensor([0.5])])
    alpha = 1 - torch.exp(-sigma * delta)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    return alpha * trans


def disparity(weights, t, floor):
    depth, acc = (weights * t).sum(-1), weights.sum(-1)
    return 1.0 / torch.maximum(torch.full_like(depth, 1e-10), depth / (acc + floor) + floor)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(635)
    net = Field()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(640)
    t = torch.linspace(0.5, 4, 8)
    with torch.no_grad():
        net.mlp[0].weight.abs_()
        net.mlp[0].bias.zero_()
        net.mlp[2].weight.abs_()
        net.mlp[2].bias.zero_()

    def step(i):
        opt.zero_grad()
        origin = torch.rand(6, 1, 3, generator=gen) + 1.0
        way = torch.rand(6, 1, 3, generator=gen)
        if i == 3:
            origin[2] = -50.0
            way[2] = -1.0
        w = march(net(origin + t[:, None] * way), t)
        loss = (disparity(w, t, 1e-3 if fixed else 0.0) - 0.8).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
