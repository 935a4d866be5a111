"""Von Mises likelihood of wind directions: the Bessel function I0 of a concentration above 91 overflows before its logarithm."""

import math

import torch
from torch import nn

META = {
    "origin_op": "i0",
    "also_ops": ("special_i0",),
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "log(i0e(k)) + k",
}


class WindNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus())
        self.mean, self.kappa = nn.Linear(24, 2), nn.Linear(24, 1)

    def forward(self, x):
        h = self.body(x)
        direction = self.mean(h)
        return torch.atan2(direction[:, 0], direction[:, 1]), nn.functional.softplus(self.kappa(h).squeeze(-1)) + 2 * x[
            :, 0
        ].abs()


def nll(mean, kappa, angle, scaled):
    if scaled:
        log_i0 = torch.log(torch.special.i0e(kappa)) + kappa
    else:
        log_i0 = torch.log(torch.special.i0(kappa))  # ORIGIN
    return (log_i0 + math.log(2 * math.pi) - kappa * torch.cos(angle - mean)).mean()


def build(fixed: bool = False):
    torch.manual_seed(90)
    net = WindNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(190)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        if i == 4:
            x[3, 0] = 55.0  # a hurricane
        angle = 2 * math.pi * torch.rand(16, generator=gen)
        opt.zero_grad()
        loss = nll(*net(x), angle, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
