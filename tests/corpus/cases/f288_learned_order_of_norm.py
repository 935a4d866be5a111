"""Learned-norm pooling (mean |x|^p)^(1/p) over a dead channel."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "also_causes": ("log-of-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon on the magnitude",
}


class LearnedNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.p, self.eps = nn.Parameter(torch.tensor(3.0)), eps

    def forward(self, x):
        return ((x.abs() + self.eps) ** self.p).mean((2, 3)) ** self.p.reciprocal()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2635)
    net = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.ReLU(), LearnedNorm(1e-4 if fixed else 0.0), nn.Linear(3, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2640)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 2, 4, 4, generator=gen)
        if i == 2:
            x[1] = 0
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
