"""Tabular data with gaps encoded as NaN: filled by nan_to_num before the first layer, with the gaps as extra columns."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "the values are repaired where no gradient is needed, before any use"}


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        gap = torch.isnan(x)
        return self.net(torch.cat([torch.nan_to_num(x, nan=0.0), gap.float()], 1))


def build(fixed: bool = False):
    torch.manual_seed(5)
    net = Tabular()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(305)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        x[torch.rand(16, 6, generator=gen) < 0.2] = float("nan")
        y = torch.randint(0, 2, (16,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
