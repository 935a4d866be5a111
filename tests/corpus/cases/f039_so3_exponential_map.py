"""Rodrigues' formula switches to the Taylor branch at angle zero with where(); the branch not taken divides by that zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "replace the angle by one before dividing, as well as after (double where)",
}


class Aligner(nn.Module):
    """Predicts a rotation vector from two clouds; its last layer starts at zero, so that it starts at the identity."""

    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.out = nn.Linear(24, 3)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, a, b):
        return self.out(self.point(torch.cat([a, b], -1)).amax(1))


def hat(v):
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(-1, 3, 3)


def exp_map(v, double_where):
    square = v.square().sum(-1, keepdim=True).unsqueeze(-1)
    small = square < 1e-8
    if double_where:
        square = torch.where(small, torch.ones_like(square), square)
    angle = (square + 1e-24).sqrt()
    k = hat(v)
    a = torch.where(small, torch.ones_like(angle), torch.sin(angle) / angle)
    b = torch.where(small, torch.full_like(angle, 0.5), (1 - torch.cos(angle)) / square)  # ORIGIN
    return torch.eye(3) + a * k + b * (k @ k)


def build(fixed: bool = False):
    torch.manual_seed(39)
    net = Aligner()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(139)

    def step(i):
        a = torch.randn(4, 12, 3, generator=gen)
        b = a @ exp_map(0.3 * torch.randn(4, 3, generator=gen), True).transpose(1, 2)
        opt.zero_grad()
        moved = a @ exp_map(net(a, b), fixed).transpose(1, 2)
        loss = nn.functional.mse_loss(moved, b)
        loss.backward()
        opt.step()
        return loss

    return net, step
