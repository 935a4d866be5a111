"""Gumbel noise as -log(-log(u)): a uniform draw of exactly zero or one ends in an infinity."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp u to [1e-6, 1 - 1e-6]",
}


class Selector(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.score = nn.Linear(6, 8)
        self.value = nn.Linear(8, 1)

    def forward(self, x, u):
        u = u.clamp(self.eps, 1 - self.eps)
        g = -torch.log(-torch.log(u))  # ORIGIN
        soft = torch.softmax((self.score(x) + g) / 0.5, -1)
        return self.value(soft).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(403)
    net = Selector(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(903)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        u = torch.rand(8, 8, generator=gen).clamp(0.01, 0.99)
        if i == 2:
            u[3, 2] = 1.0  # rand in float16 rounds up
        loss = F.mse_loss(net(x, u), x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
