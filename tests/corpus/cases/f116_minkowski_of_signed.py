"""A learnable Minkowski pooling raises signed feature differences to the power p; with fractional p a negative base is NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-negative-base",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "take the absolute value first",
}


class Minkowski(nn.Module):
    def __init__(self, use_abs):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(2.5))
        self.use_abs = use_abs

    def forward(self, a, b):
        diff = a - b
        if self.use_abs:
            diff = diff.abs() + 1e-6
        powered = diff.pow(self.p)  # ORIGIN
        return powered.mean(-1)


class Siamese(nn.Module):
    def __init__(self, use_abs):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        self.dist = Minkowski(use_abs)

    def forward(self, a, b):
        return self.dist(self.tower(a), self.tower(b))


def build(fixed: bool = False):
    torch.manual_seed(210)
    net = Siamese(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(710)

    def step(i):
        opt.zero_grad()
        a, b = torch.randn(2, 12, 6, generator=gen)
        same = (torch.arange(12) % 2).float()
        d = net(a, b)
        loss = (same * d + (1 - same) * F.relu(1 - d)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
