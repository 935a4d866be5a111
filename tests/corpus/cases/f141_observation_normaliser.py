"""A running observation normaliser starts with count zero and divides by it when its buffers are prepared."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("sub",),
    "phase": "init",
    "cause": "poisoned-buffer",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "start with a count of one",
}


class ObsNorm(nn.Module):
    def __init__(self, dim, count):
        super().__init__()
        total, seen = torch.zeros(dim), torch.tensor(count)
        self.register_buffer("mean", total / seen)  # ORIGIN
        self.register_buffer("var", torch.ones(dim))

    def forward(self, obs):
        return (obs - self.mean) / (self.var + 1e-8).sqrt()  # ALSO


class Critic(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.norm = ObsNorm(6, count)
        self.q = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, obs):
        return self.q(self.norm(obs)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(239)
    net = Critic(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(739)

    def step(i):
        opt.zero_grad()
        obs = torch.randn(10, 6, generator=gen)
        loss = F.mse_loss(net(obs), obs.sum(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
