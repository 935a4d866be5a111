"""Robust scaling by median and MAD: a stuck sensor has a MAD of zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add a floor to the scale",
}


class RobustScale(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x):
        med = x.median(dim=1, keepdim=True).values
        dev = x - med
        return dev / (1.4826 * dev.abs().median(dim=1, keepdim=True).values + self.floor)  # ORIGIN


class Forecaster(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.scale, self.rnn, self.out = RobustScale(floor), nn.GRU(3, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.rnn(self.scale(x))[0][:, -1])


def build(fixed: bool = False):
    torch.manual_seed(1033)
    net = Forecaster(1e-3 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1038)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 12, 3, generator=gen).cumsum(1)
        if i == 2:
            x[1, :, 2] = 7.25
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
