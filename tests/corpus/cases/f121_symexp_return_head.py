"""A world model predicts symlog returns and maps them back with symexp; an early outlier prediction makes expm1 overflow."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "expm1",
    "also_ops": ("special_expm1",),
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "compare in symlog space",
}


def symexp(x):
    return torch.sign(x) * torch.expm1(torch.abs(x))  # ORIGIN


class Reward(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 1))
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, z):
        return (self.net(z) * self.gain).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(215)
    net = Reward()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(715)

    def step(i):
        opt.zero_grad()
        z = torch.randn(16, 7, generator=gen)
        r = 3 * torch.randn(16, generator=gen)
        with torch.no_grad():
            if i == 2:
                net.gain.fill_(900.0)
        pred = net(z)
        if fixed:
            loss = F.mse_loss(pred, torch.sign(r) * torch.log1p(r.abs()))
        else:
            loss = F.mse_loss(symexp(pred), r)
        loss.backward()
        opt.step()
        return loss

    return net, step
