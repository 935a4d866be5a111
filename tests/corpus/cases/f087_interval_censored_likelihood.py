"""Interval-censored regression: the difference of two normal distribution functions in the far tail is zero, and so its log -inf."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "a floor under the probability of the interval",
}


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus())
        self.loc, self.scale = nn.Linear(24, 1), nn.Linear(24, 1)

    def forward(self, x):
        h = self.net(x)
        return self.loc(h).squeeze(-1), nn.functional.softplus(self.scale(h)).squeeze(-1) + 0.1


def nll(loc, scale, low, high, floor):
    inside = torch.special.ndtr((high - loc) / scale) - torch.special.ndtr((low - loc) / scale)
    return -torch.log(inside + floor).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(87)
    net = Interval()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(187)

    def step(i):
        x = torch.randn(20, 3, generator=gen)
        low = torch.floor(x[:, 0] + 0.3 * torch.randn(20, generator=gen))
        if i == 5:
            low[4] = 60.0
        opt.zero_grad()
        loss = nll(*net(x), low, low + 1, 1e-10 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
