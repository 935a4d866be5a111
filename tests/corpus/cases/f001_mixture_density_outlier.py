"""A mixture density network sums component densities before the log; an outlier has density zero under all of them."""

import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "logsumexp of the components' log-densities",
}


class MixtureDensity(nn.Module):
    def __init__(self, components=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.weight = nn.Linear(24, components)
        self.mean = nn.Linear(24, components)
        self.log_std = nn.Linear(24, components)

    def forward(self, x):
        h = self.body(x)
        return torch.log_softmax(self.weight(h), -1), self.mean(h), self.log_std(h)


def nll(log_w, mean, log_std, y, stable):
    z = (y.unsqueeze(-1) - mean) / log_std.exp()
    log_n = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
    if stable:
        return -torch.logsumexp(log_w + log_n, -1).mean()
    density = (log_w.exp() * log_n.exp()).sum(-1)
    return -torch.log(density).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1)
    net = MixtureDensity()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(101)

    def step(i):
        x = torch.randn(32, 4, generator=gen)
        y = torch.sin(x[:, 0]) + 0.1 * torch.randn(32, generator=gen)
        if i == 4:
            y[7] = 45.0  # a reading in the wrong unit
        opt.zero_grad()
        loss = nll(*net(x), y, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
