"""Log-cosh loss by hand: cosh of a residual of a hundred overflows although its logarithm is a hundred."""

import math

import torch
from torch import nn

META = {
    "origin_op": "cosh",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "|e| + softplus(-2|e|) - log 2",
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU())
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.conv(x.unsqueeze(1)).mean(-1)).squeeze(-1)


def log_cosh(e, stable):
    if stable:
        return (e.abs() + nn.functional.softplus(-2 * e.abs()) - math.log(2)).mean()
    return torch.log(torch.cosh(e)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(32)
    net = Regressor()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(132)

    def step(i):
        x = torch.randn(10, 24, generator=gen)
        y = x.mean(1)
        if i == 4:
            y[8] = -105.0  # a price crash
        opt.zero_grad()
        loss = log_cosh(net(x) - y, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
