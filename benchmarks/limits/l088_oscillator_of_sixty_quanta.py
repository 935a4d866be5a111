"""Oscillator eigenfunctions H_n(x) exp(-x^2 / 2) / sqrt(2^n n! sqrt(pi)) up to n = 60 by the Hermite recursion: the polynomials leave float32, the functions are below 1.

Source: well-known fault (harmonic-oscillator basis with raw polynomials)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "recursion",
    "loss_truth": 0.3144603862,
    "fix": "the recursion of the normalised functions themselves",
}


def eigenfunctions(x, top):
    h = [torch.ones_like(x), 2 * x]
    for n in range(1, top):
        h.append(2 * x * h[n] - 2 * n * h[n - 1])  # ORIGIN
    envelope = torch.exp(-x.square() / 2)
    return [p * envelope / math.sqrt(2.0**n * math.factorial(n) * math.sqrt(math.pi)) for n, p in enumerate(h)]


def eigenfunctions_normalised(x, top):
    psi = [torch.exp(-x.square() / 2) / math.pi**0.25]
    psi.append(math.sqrt(2) * x * psi[0])
    for n in range(1, top):
        psi.append(math.sqrt(2 / (n + 1)) * x * psi[n] - math.sqrt(n / (n + 1)) * psi[n - 1])
    return psi


class Wave(nn.Module):
    def __init__(self, levels=(0, 7, 60)):
        super().__init__()
        self.levels = levels
        self.length = nn.Parameter(torch.tensor(0.8))
        self.coefficient = nn.Parameter(torch.tensor([0.9, -0.3, 0.5]))

    def forward(self, position, basis):
        psi = basis(position / self.length, max(self.levels))
        return torch.stack([psi[n] for n in self.levels], -1) @ self.coefficient


def build(fixed: bool = False):
    wave = Wave()
    opt = torch.optim.SGD(wave.parameters(), lr=1e-3)
    position = torch.tensor([-2.0, -0.5, 0.3, 1.7, 3.1])
    seen = torch.tensor([0.2, 0.4, 0.9, -0.1, 0.1])

    def step(i):
        opt.zero_grad()
        loss = (wave(position, eigenfunctions_normalised if fixed else eigenfunctions) - seen).pow(2).sum()
        loss.backward()
        opt.step()
        return loss

    return wave, step


def truth():
    length = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    coefficient = torch.tensor([0.9, -0.3, 0.5], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([-2.0, -0.5, 0.3, 1.7, 3.1], dtype=torch.float64) / length
    columns = []
    for n in (0, 7, 60):  # H_60 and sqrt(2^60 60!) are ordinary numbers in float64
        a, b = torch.zeros_like(x), torch.ones_like(x)
        for k in range(n):
            a, b = b, 2 * x * b - 2 * k * a
        columns.append(b * torch.exp(-(x**2) / 2 - (n * math.log(2) + math.lgamma(n + 1) + math.log(math.pi) / 2) / 2))
    seen = torch.tensor([0.2, 0.4, 0.9, -0.1, 0.1], dtype=torch.float64)
    loss = (torch.stack(columns, 1) @ coefficient - seen).pow(2).sum()
    g = torch.autograd.grad(loss, [length, coefficient])
    return {"length": g[0], "coefficient": g[1]}
