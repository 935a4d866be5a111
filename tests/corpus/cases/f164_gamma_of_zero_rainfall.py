"""Rainfall amounts are scored by a Gamma distribution; a dry day has amount zero, outside the support."""

import torch
from torch import nn
from torch.distributions import Gamma
from torch.nn import functional as F

META = {
    "origin_op": "xlogy",
    "also_ops": ("log", "mul"),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "model dry days apart",
}


class Rain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        shape, rate = F.softplus(self.net(x)).unbind(-1)
        return Gamma(shape + 0.1, rate + 0.1, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(307)
    net = Rain()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(807)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 5, generator=gen)
        amount = torch.rand(12, generator=gen) * 5 + 0.1
        if i == 2:
            amount[3] = 0.0
        wet = amount > 0 if fixed else slice(None)
        loss = -net(x[wet]).log_prob(amount[wet]).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
