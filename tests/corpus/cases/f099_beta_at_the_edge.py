"""Beta regression of fractions without validation: an observed fraction of exactly one has log-density -inf or worse."""

import torch
from torch import nn
from torch.distributions import Beta

META = {
    "origin_op": "xlogy",
    "also_ops": ("log", "log1p"),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "squeeze the fractions into (0, 1)",
}


class Fractions(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        a, b = (nn.functional.softplus(self.net(x)) + 1.0).unbind(-1)
        return Beta(a, b, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(99)
    net = Fractions()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(199)

    def step(i):
        x = torch.randn(20, 6, generator=gen)
        share = 0.05 + 0.9 * torch.rand(20, generator=gen)
        if i == 4:
            share[13] = 1.0
        if fixed:
            share = 0.001 + 0.998 * share
        opt.zero_grad()
        loss = -net(x).log_prob(share).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
