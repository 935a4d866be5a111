"""Impulse response of a learned low-pass filter, sin(2 pi f n) / (pi n): the centre tap n = 0 is 2 f.

Source: well-known fault (SincNet-like layers without the symmetric construction)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.851356532,
}


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Parameter(torch.tensor([0.1, 0.23]))

    def forward(self, fixed):
        n = torch.arange(-2.0, 3.0)
        if fixed:
            taps = 2 * self.f[:, None] * torch.sinc(2 * self.f[:, None] * n)
        else:
            taps = torch.sin(2 * math.pi * self.f[:, None] * n) / (math.pi * n)  # ORIGIN
        loss = (taps.cumsum(1) - 0.4).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Filter()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    f = torch.tensor([0.1, 0.23], dtype=torch.float64, requires_grad=True)
    n = torch.arange(-2.0, 3.0)
    taps = 2 * f[:, None] * torch.sinc(2 * f[:, None] * n)
    loss = (taps.cumsum(1) - 0.4).pow(2).sum()
    df_, = torch.autograd.grad(loss, [f])
    return {"f": df_}
