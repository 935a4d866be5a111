"""Spectroscopy in SI units: wavelengths of a few nanometres are zero once cast to half, and the input layer never learns."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "grad:enc.0.weight",
    "fix": "give the wavelengths in micrometres",
}


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.enc(x)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(60)
    net = Spectrum().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(160)
    unit = 1e9 if fixed else 1.0

    def step(i):
        lines = 1e-8 * torch.rand(12, 6, generator=gen)
        y = (lines.sum(1) * 1e8 - 3).tanh()
        x = (lines * unit).half()  # ORIGIN
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
