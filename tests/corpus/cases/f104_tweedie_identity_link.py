"""Tweedie deviance of insurance losses with an identity link: the mean mu is negative for one policy, mu^(1 - p) is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-negative-base",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "a softplus or log link",
}


class Premium(nn.Module):
    def __init__(self, positive):
        super().__init__()
        self.positive = positive
        self.cell = nn.Embedding(9, 4)
        self.net = nn.Sequential(nn.Linear(7, 24), nn.ELU(), nn.Linear(24, 24), nn.ELU(), nn.Linear(24, 1))

    def forward(self, cell, x):
        mu = 2.0 + x[:, 0] + 0.1 * self.net(torch.cat([self.cell(cell), x], -1)).squeeze(-1)
        return nn.functional.softplus(mu) if self.positive else mu


def deviance(mu, y, p=1.5):
    return (-y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(104)
    net = Premium(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(204)

    def step(i):
        cell, x = torch.randint(0, 9, (20,), generator=gen), 0.3 * torch.randn(20, 3, generator=gen)
        if i == 3:
            x[12, 0] = -4.0
        y = torch.relu(torch.randn(20, generator=gen))
        opt.zero_grad()
        loss = deviance(net(cell, x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
