"""Reptile: a copy of the net learns a task for four steps with its own SGD; the Poisson likelihood takes log of a bounded rate that has saturated at zero."""

import copy

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "twin_rests": (3, 4),
    "fix": "an epsilon for the rate",
}


class Rate(nn.Module):
    def __init__(self, soft):
        super().__init__()
        self.soft = soft
        self.f = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
        nn.init.constant_(self.f[-1].bias, -1.0)

    def forward(self, x):
        z = self.f(x).squeeze(-1)
        return 10 * torch.sigmoid(z) + (1e-6 if self.soft else 0.0)


def build(fixed: bool = False):
    torch.manual_seed(71)
    net = Rate(fixed)
    gen = torch.Generator().manual_seed(72)

    def poisson(rate, count):
        return (rate - count * torch.log(rate)).mean()  # ORIGIN

    def inner(fast, x, count):
        sgd = torch.optim.SGD(fast.parameters(), lr=0.02)
        for _ in range(4):
            sgd.zero_grad()
            loss = poisson(fast(x), count)
            loss.backward()
            sgd.step()
        return loss.detach()

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        count = torch.poisson(torch.full((8,), 3.0), generator=gen) + 1
        if i == 2:
            x[3, 0] = 1.0
            nn.init.constant_(net.f[-1].bias, -120.0)  # the head is re-initialised to "no events"
        fast = copy.deepcopy(net)
        loss = inner(fast, x, count)
        with torch.no_grad():
            for p, q in zip(net.parameters(), fast.parameters(), strict=True):
                p.lerp_(q, 0.3)
        return loss

    return net, step
