"""Interval-censored lifetimes: log(F(b) - F(a)) of a normal distribution, an interval 10 sigmas up has F(a) = F(b) = 1.

Source: well-known fault (censored likelihood through differences of the distribution function)
"""
import math

import torch
from torch import nn
from torch.distributions import Normal

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 1,
    "kind": "overflow",
    "loss_truth": 18.79390745,
    "fix": "log_ndtr of the mirrored interval",
}


def log_ndtr_diff(lo, hi):
    flip = lo > 0
    a, b = torch.where(flip, -hi, lo), torch.where(flip, -lo, hi)
    big, small = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    return big + torch.log(-torch.expm1(small - big))


class Lifetime(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(1.0))
        self.log_scale = nn.Parameter(torch.tensor(0.0))

    def forward(self, lo, hi, fixed):
        scale = self.log_scale.exp()
        if fixed:
            return log_ndtr_diff((lo - self.loc) / scale, (hi - self.loc) / scale)
        d = Normal(self.loc, scale)
        return torch.log(d.cdf(hi) - d.cdf(lo))  # ORIGIN


LO, HI = [0.0, 1.5, 11.0], [0.5, 3.0, 12.0]


def build(fixed: bool = False):
    model = Lifetime()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    lo, hi = torch.tensor(LO), torch.tensor(HI)

    def step(i):
        opt.zero_grad()
        loss = -model(lo, hi, fixed).mean()
        loss.backward()
        opt.step()
        return loss

    return model, step


def truth():
    # mirrored, erfc keeps its digits: F(b) - F(a) = (erfc(a / sqrt 2) - erfc(b / sqrt 2)) / 2
    gl = gs = 0.0
    for lo, hi in zip(LO, HI):
        a, b = lo - 1.0, hi - 1.0
        mass = (math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2))) / 2
        pa, pb = (math.exp(-v * v / 2) / math.sqrt(2 * math.pi) for v in (a, b))
        gl += (pb - pa) / mass / 3
        gs += (pb * b - pa * a) / mass / 3
    return {"loc": torch.tensor(gl, dtype=torch.float64), "log_scale": torch.tensor(gs, dtype=torch.float64)}
