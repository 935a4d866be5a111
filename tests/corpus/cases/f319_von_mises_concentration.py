"""A von Mises head: log(i0(kappa)) overflows as soon as one direction is predicted with a concentration beyond 91."""
import math

import torch
from torch import nn

META = {
    "origin_op": "special_i0",
    "also_ops": ["i0"],
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "kappa + log(i0e(kappa))",
}


def nll(angle, mean, kappa, scaled):
    if scaled:
        log_norm = kappa + torch.special.i0e(kappa).log()
    else:
        log_norm = torch.special.i0(kappa).log()  # ORIGIN
    return log_norm + math.log(2 * math.pi) - kappa * torch.cos(angle - mean)


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, x):
        s, c, k = self.net(x).unbind(-1)
        return torch.atan2(s, c + 2.0), nn.functional.softplus(k) + 0.1


def build(fixed: bool = False):
    torch.manual_seed(291)
    net = Heading()
    with torch.no_grad():
        net.net[2].bias[2] = 1.0
        net.net[2].weight[2].abs_()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(292)

    def step(i):
        x = torch.randn(20, 4, generator=gen)
        if i == 4:
            x[::3] *= 400.0  # speed arrives in mm/s
        angle = 0.3 * torch.randn(20, generator=gen)
        mean, kappa = net(x)
        opt.zero_grad()
        loss = nll(angle, mean, kappa, fixed).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
