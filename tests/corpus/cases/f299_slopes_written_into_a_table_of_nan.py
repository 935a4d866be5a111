"""Slopes of many series are written into a table that begins as NaN, and the defined ones are averaged: one series has
no spread in time.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "leave the series out before its slope is computed",
}


class Trend(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, features, times):
        value = self.net(features).squeeze(-1)
        slopes = torch.full((len(value),), float("nan"))
        for k, (v, t) in enumerate(zip(value, times, strict=True)):
            dt, dv = t - t.mean(), v - v.mean()
            if self.safe and not bool(dt.any()):
                continue
            slopes[k] = (dt * dv).sum() / dt.square().sum()  # ORIGIN
        return slopes


def build(fixed: bool = False):
    torch.manual_seed(949)
    net = Trend(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(49)

    def step(i):
        features, times = torch.randn(6, 5, 4, generator=gen), torch.rand(6, 5, generator=gen)
        if i >= 2:
            times[3] = 0.25  # all visits of one patient on one day
        known = torch.randn(6, generator=gen)
        opt.zero_grad()
        slopes = net(features, times)
        fine = ~slopes.isnan()
        loss = (slopes[fine] - known[fine]).abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
