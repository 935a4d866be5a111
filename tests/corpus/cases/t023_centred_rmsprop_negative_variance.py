"""Centred RMSprop on a critic whose bias has a constant gradient: mean square minus squared mean rounds below zero before the root."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt_",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("sqrt-of-negative",),
    "symptom": "param-nan",
    "first_bad_step": 44,
    "n_steps": 60,
    "fix": "centered=False, or an epsilon inside the root",
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.LeakyReLU(0.2))
        self.score = nn.Linear(24, 1)
        self.offset = nn.Parameter(torch.zeros(3))
        self.register_buffer("prior", torch.tensor([0.1, 0.37, 0.7]))

    def forward(self, x):
        return self.score(self.body(x)).squeeze(-1) + self.offset @ self.prior


def build(fixed: bool = False):
    torch.manual_seed(423)
    net = Critic()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.7, centered=not fixed)
    gen = torch.Generator().manual_seed(523)

    def step(i):
        real = torch.randn(16, 4, generator=gen) + 1.0
        fake = torch.randn(16, 4, generator=gen)
        opt.zero_grad()
        loss = 0.1 * net(fake).mean() - 0.4 * net(real).mean()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
