"""Log power spectrum of a strain of 1e-24: its square is 1e-48, zero in float32.

Source: well-known fault (power in SI units)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1940543416,
    "fix": "whiten first: take the scale out of the logarithm",
}


STRAIN = 1e-24


class Chirp(nn.Module):
    def __init__(self):
        super().__init__()
        self.amp = nn.Parameter(torch.tensor([1.0, 0.6]))
        self.phase = nn.Parameter(torch.tensor([0.2, -0.7]))
        t = torch.arange(8) / 8
        self.register_buffer("carrier", 2 * math.pi * t.to(torch.get_default_dtype()) * torch.ones(2, 1))

    def forward(self):
        return STRAIN * (self.amp[:, None] * torch.cos(self.carrier + self.phase[:, None]) + 0.3 * self.amp[:, None]).sum(0)


def log_power(h, fixed):
    if fixed:
        f = torch.fft.rfft(h / STRAIN)[:2]
        return torch.log10(f.real**2 + f.imag**2) + 2 * math.log10(STRAIN)
    f = torch.fft.rfft(h)[:2]
    return torch.log10(f.real**2 + f.imag**2)  # ORIGIN


def build(fixed: bool = False):
    source = Chirp()
    opt = torch.optim.SGD(source.parameters(), lr=1e-3)
    psd = torch.tensor([-46.5, -47.0])

    def step(i):
        opt.zero_grad()
        loss = (log_power(source(), fixed) - psd).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return source, step


def truth():
    # bin 0 holds 2.4 (a + b), bin 1 holds 4 (a e^(i p) + b e^(i q))
    f8 = torch.float64
    a, b, p, q = 1.0, 0.6, 0.2, -0.7
    re, im = a * math.cos(p) + b * math.cos(q), a * math.sin(p) + b * math.sin(q)
    r2 = re * re + im * im
    ten = 1 / math.log(10)
    left0 = 2 * math.log10(2.4 * (a + b)) - 48 + 46.5
    left1 = math.log10(16 * r2) - 48 + 47.0
    ga = [left0 * 2 * ten / (a + b) + left1 * ten * 2 * (re * math.cos(t) + im * math.sin(t)) / r2 for t in (p, q)]
    gp = [left1 * ten * 2 * amp * (im * math.cos(t) - re * math.sin(t)) / r2 for amp, t in ((a, p), (b, q))]
    return {"amp": torch.tensor(ga, dtype=f8), "phase": torch.tensor(gp, dtype=f8)}
