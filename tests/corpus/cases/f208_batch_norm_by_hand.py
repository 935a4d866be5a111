"""Batch normalisation written out without epsilon over a batch in which one feature is constant."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "sqrt(var + 1e-5)",
}


class BN(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.g, self.b = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        mu = x.mean(0)
        var = ((x - mu) ** 2).mean(0)
        return self.g * (x - mu) / torch.sqrt(var + self.eps) + self.b  # ORIGIN


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.bn, self.l = BN(eps), nn.Linear(6, 2)

    def forward(self, x):
        return self.l(self.bn(x))


def build(fixed: bool = False):
    torch.manual_seed(425)
    net = Net(1e-5 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(925)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        if i == 2:
            x[:, 3] = 1.0
        loss = F.cross_entropy(net(x), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
