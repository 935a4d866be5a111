"""Rapidity arccosh(gamma) of particles, one of them at rest: it is to move, the slope is infinite.

Source: well-known fault (rapidity of a particle at rest)
"""
import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "acosh-at-one",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 1.11528304,
    "fix": "gamma.clamp_min(1 + 1e-6)",
}


class Particles(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor([1.3, 1.0, 2.0]))
        self.offset = nn.Parameter(torch.tensor(0.1))

    def rapidity(self, fixed):
        gamma = self.gamma + 1e-6 * (self.gamma == 1) if fixed else self.gamma
        return torch.acosh(gamma) + self.offset  # ORIGIN

    def forward(self, fixed):
        return (self.rapidity(fixed) - torch.tensor([0.7, 0.6, 0.5]).to(self.gamma)).pow(2).sum()


def build(fixed: bool = False):
    beam = Particles()
    opt = torch.optim.SGD(beam.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = beam(fixed)
        loss.backward()
        opt.step()
        return loss

    return beam, step


def truth():
    gamma = torch.tensor([1.3, 1.0, 2.0], dtype=torch.float64)
    rapidity = torch.log(gamma + torch.sqrt(gamma**2 - 1))
    left = 2 * (rapidity + 0.1 - torch.tensor([0.7, 0.6, 0.5], dtype=torch.float64))
    return {"gamma": left / torch.sqrt(gamma**2 - 1), "offset": left.sum()}
