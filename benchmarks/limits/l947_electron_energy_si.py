"""Relativistic energy sqrt(p^2 c^2 + m^2 c^4) of electrons in SI units: p^2 and m^2 underflow to 0 in float32.

Source: well-known fault (SI units in float32)
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.09719999321,
    "fix": "hypot(p c, m c^2)",
}


C = 2.99792458e8


class Electrons(nn.Module):
    def __init__(self):
        super().__init__()
        self.momentum = nn.Parameter(torch.tensor([2.0, -1.0, 1.5]))
        self.mass = nn.Parameter(torch.tensor(1.0))

    def energy(self, fixed):
        p = self.momentum * 1e-23
        m = self.mass * 9.109e-31
        if fixed:
            return torch.hypot(p * C, m * C * C)
        return torch.sqrt(p**2 * C**2 + m**2 * C**4)  # ORIGIN

    def forward(self, fixed):
        return (self.energy(fixed) / 1e-13 - 1).pow(2).sum()


def build(fixed: bool = False):
    beam = Electrons()
    opt = torch.optim.SGD(beam.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = beam(fixed)
        loss.backward()
        opt.step()
        return loss

    return beam, step


def truth():
    p = torch.tensor([2.0, -1.0, 1.5], dtype=torch.float64) * 1e-23 * C / 1e-13
    rest = 9.109e-31 * C**2 / 1e-13
    energy = torch.sqrt(p**2 + rest**2)
    left = 2 * (energy - 1)
    return {"momentum": left * p * (1e-23 * C / 1e-13) / energy, "mass": (left * rest**2 / energy).sum()}
