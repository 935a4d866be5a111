"""Interval probabilities in the log domain: log(exp(a) - exp(b)) as a + log1p(-exp(b - a)) meets a - b = 0 for an empty interval."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log1p",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "keep a minimum width",
}


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, low, high):
        mu = self.net(x).squeeze(-1)
        a, b = F.logsigmoid(high - mu), F.logsigmoid(low - mu)
        return a + torch.log1p(-torch.exp(b - a))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(302)
    net = Interval()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(802)

    def step(i):
        opt.zero_grad()
        x = torch.randn(10, 4, generator=gen)
        low = torch.randn(10, generator=gen)
        width = 0.2 + torch.rand(10, generator=gen)
        if i == 2:
            width[4] = 0.05 if fixed else 0.0
        loss = -net(x, low, low + width).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
