"""The square of a sinc in a helper function.

Source: well-known fault (diffraction of a slit)
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
    "loss_truth": 0.8675683191,
}


def aperture(t):
    return torch.sin(t) / t  # ORIGIN


class Slit(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 1.1, -2.0]))

    def forward(self, fixed):
        if fixed:
            intensity = torch.sinc(self.t / math.pi) ** 2
        else:
            intensity = aperture(self.t) ** 2
        loss = (intensity * (0.3 + self.t)).sum()
        return loss


def build(fixed: bool = False):
    net = Slit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    t = torch.tensor([0.0, 1.1, -2.0], dtype=torch.float64, requires_grad=True)
    intensity = torch.sinc(t / math.pi) ** 2
    loss = (intensity * (0.3 + t)).sum()
    found = torch.autograd.grad(loss, [t], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["t"], [t], found)}
    return true
