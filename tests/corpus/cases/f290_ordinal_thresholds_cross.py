"""Cumulative-link probabilities as differences of sigmoids: crossing thresholds make one negative, its logarithm
NaN.
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "keep the thresholds in order",
}


class Ordinal(nn.Module):
    def __init__(self, ordered):
        super().__init__()
        self.score, self.cuts, self.ordered = nn.Linear(3, 1), nn.Parameter(torch.tensor([-1.0, 0.0, 1.0])), ordered

    def forward(self, x, y):
        cuts = self.cuts.sort().values if self.ordered else self.cuts
        cdf = torch.sigmoid(cuts - self.score(x))
        cdf = torch.cat([torch.zeros(len(x), 1), cdf, torch.ones(len(x), 1)], 1)
        return -cdf.diff(dim=1).gather(1, y[:, None]).log().mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2656)
    net = Ordinal(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2661)

    def step(i):
        opt.zero_grad()
        if i == 2:
            with torch.no_grad():
                net.cuts[1] += 3.0
        loss = net(torch.randn(8, 3, generator=gen), torch.arange(8) % 4)
        loss.backward()
        opt.step()
        return loss

    return net, step
