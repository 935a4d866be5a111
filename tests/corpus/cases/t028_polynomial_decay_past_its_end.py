"""Polynomial decay goes on after the planned number of steps: a negative base to the power 0.9 is NaN, and so is the learning rate."""

import numpy as np
import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "param-nan",
    "first_bad_step": 9,
    "n_steps": 12,
    "fix": "clamp the remaining share at zero",
}


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(428)
    net = Segmenter()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(528)
    planned, base = 8, 0.05

    def step(i):
        left = np.float64(1 - i / planned)
        if fixed:
            left = np.maximum(left, 0.0)
        for group in opt.param_groups:
            group["lr"] = float(base * np.power(left, 0.9))  # ALSO
        x = torch.randn(2, 1, 8, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
