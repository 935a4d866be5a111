"""Soft thresholds log(1 + exp(k z)) / k of a layer in a reentrant checkpoint, whose weights get
their gradients from the engine that it runs itself; exp(k z) is inf for one reading of 150.

Source: well-known fault (softplus written out, under activation checkpointing)
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "range",
    "loss_truth": 1.5434973,
    "fix": "F.softplus(k z) / k",
}
READINGS = [[150.0, 1.0], [0.4, -0.8]]
WANTED = [148.5, 0.3]
SHARP = 2.0


class Threshold(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([1.0, 0.25]))

    def forward(self, x, fixed):
        z = x @ self.mix
        if fixed:
            return nn.functional.softplus(SHARP * z) / SHARP
        return torch.log(1 + torch.exp(SHARP * z)) / SHARP  # ORIGIN


class Gauge(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.threshold = Threshold()

    def forward(self, fixed=False):
        read = torch.tensor(READINGS) * self.gain
        level = checkpoint(self.threshold, read, fixed, use_reentrant=True)
        return (level - torch.tensor(WANTED)).square().mean()


def build(fixed: bool = False):
    net = Gauge()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor(READINGS, dtype=torch.float64)
    mix = torch.tensor([1.0, 0.25], dtype=torch.float64)
    z = x @ mix
    e = torch.exp(-SHARP * z)
    value, slope = z + torch.log1p(e) / SHARP, 1 / (1 + e)
    left = (value - torch.tensor(WANTED, dtype=torch.float64)) * slope
    return {"gain": (left * z).sum(), "threshold.mix": left @ x}
