"""Slot-filling with Uniform(low, high).log_prob: one observation lies above the predicted interval, its density is zero."""

import torch
from torch import nn
from torch.distributions import Uniform
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "widen the predicted interval to hold the observation",
}


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        centre, width = self.net(x).unbind(-1)
        return centre - 4 - F.softplus(width), centre + 4 + F.softplus(width)


def build(fixed: bool = False):
    torch.manual_seed(227)
    net = Interval()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(727)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 3, generator=gen)
        y = torch.randn(12, generator=gen)
        if i == 2:
            y[8] = 40.0
        low, high = net(x)
        if fixed:
            low, high = torch.minimum(low, y - 0.1), torch.maximum(high, y + 0.1)
        density = Uniform(low, high, validate_args=False)
        loss = -density.log_prob(y).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
