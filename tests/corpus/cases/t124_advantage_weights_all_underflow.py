"""Advantage-weighted regression, weights normalised by hand: in a batch of poor episodes every exponential is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("dtype-underflow",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "softmax of advantage / beta",
}
BETA = 0.05


def weights(advantage, fixed):
    if fixed:
        return torch.softmax(advantage / BETA, 0)
    w = torch.exp(advantage / BETA)
    return w / w.sum()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(624)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(724)

    def step(i):
        obs = torch.randn(24, 4, generator=gen)
        act = torch.randint(0, 3, (24,), generator=gen)
        advantage = 0.2 * torch.randn(24, generator=gen) - (8.0 if i == 3 else 0.0)
        opt.zero_grad()
        logp = torch.log_softmax(net(obs), -1).gather(1, act.unsqueeze(1)).squeeze(1)
        loss = -(weights(advantage, fixed) * logp).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
