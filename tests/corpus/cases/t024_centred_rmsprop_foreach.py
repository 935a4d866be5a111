"""Centred RMSprop with foreach=True on a linear value head whose inputs never change: the variance of a steady gradient rounds below zero."""

import torch
from torch import nn

META = {
    "origin_op": "_foreach_sqrt_",
    "also_ops": ("sqrt_",),
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("sqrt-of-negative",),
    "symptom": "param-nan",
    "first_bad_step": 36,
    "n_steps": 60,
    "fix": "centered=False, or an epsilon inside the root",
}


class Bandit(nn.Module):
    def __init__(self, arms=6):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(arms, 16), nn.Tanh())
        self.value = nn.Linear(16, 1)
        self.prices = nn.Parameter(torch.zeros(arms))

    def forward(self, costs):
        return self.value(self.features(costs)).mean() + self.prices @ costs.mean(0)


def build(fixed: bool = False):
    torch.manual_seed(424)
    net = Bandit()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.65, centered=not fixed, foreach=True)
    gen = torch.Generator().manual_seed(524)
    costs = torch.rand(8, 6, generator=gen)

    def step(i):
        noise = 0.3 * torch.randn(8, 6, generator=gen)
        opt.zero_grad()
        loss = 0.2 * net(costs) + (net.features(costs + noise).mean() - 0.1).square()
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
