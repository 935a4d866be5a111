"""Zero counts are masked after the logarithm of a learned gain times the count; the mask comes too late for the gradient."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("log-of-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "mask the argument",
}


class Gain(nn.Module):
    def __init__(self, early):
        super().__init__()
        self.early = early
        self.gain = nn.Parameter(torch.ones(5))
        self.out = nn.Linear(5, 2)

    def forward(self, counts):
        empty = counts == 0
        rate = counts * self.gain
        if self.early:
            rate = rate.masked_fill(empty, 1.0)
        feats = torch.log(rate).masked_fill(empty, 0.0)  # ORIGIN
        return self.out(feats)


def build(fixed: bool = False):
    torch.manual_seed(406)
    net = Gain(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(906)

    def step(i):
        opt.zero_grad()
        counts = torch.poisson(torch.full((12, 5), 1.5), generator=gen)
        loss = F.cross_entropy(net(counts), torch.arange(12) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
