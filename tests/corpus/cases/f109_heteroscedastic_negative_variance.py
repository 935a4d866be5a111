"""A heteroscedastic regressor writes its Gaussian NLL by hand; the variance head is linear and goes below zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "pass the variance through softplus",
}


class Hetero(nn.Module):
    def __init__(self, positive):
        super().__init__()
        self.positive = positive
        self.trunk = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mu, self.var = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        var = self.var(h)
        return self.mu(h), F.softplus(var) + 1e-3 if self.positive else var


def gaussian_nll(mu, var, y):
    residual = (y - mu) ** 2 / (2 * var.abs() + 1e-3)
    normaliser = 0.5 * torch.log(var)  # ORIGIN
    return (residual + normaliser).mean()


def build(fixed: bool = False):
    torch.manual_seed(203)
    net = Hetero(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(703)

    def step(i):
        opt.zero_grad()
        x = torch.randn(32, 4, generator=gen)
        y = x[:, :1] + 0.1 * torch.randn(32, 1, generator=gen)
        mu, var = net(x)
        loss = gaussian_nll(mu, var, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
