"""Rank-based normal scores: ranks are divided by their number from zero, and ndtri of zero is minus infinity."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "special_ndtri",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "use (rank + 0.5) / n",
}


class Tabular(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.half = half
        self.mlp = nn.Sequential(nn.Linear(5, 24), nn.GELU(), nn.Linear(24, 1))

    def scores(self, x):
        rank = x.argsort(0).argsort(0).float()
        u = (rank + (0.5 if self.half else 0.0)) / x.shape[0]
        return torch.special.ndtri(u)  # ORIGIN

    def forward(self, x):
        return self.mlp(self.scores(x)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(213)
    net = Tabular(fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(713)

    def step(i):
        opt.zero_grad()
        x = torch.randn(20, 5, generator=gen).exp()
        y = x.log().sum(-1)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
