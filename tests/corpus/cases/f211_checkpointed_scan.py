"""A checkpointed recurrence multiplies its state by exp of a rate at every step; one rate is thirty and the state overflows."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "mul",
    "also_ops": ("exp",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "also_causes": ("exp-overflow",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "bound the rate by tanh",
}


class Scan(nn.Module):
    def __init__(self, bound):
        super().__init__()
        self.bound = bound
        self.rate, self.out = nn.Linear(3, 6), nn.Linear(6, 1)

    def cell(self, h, x):
        r = self.rate(x)
        r = torch.tanh(r) if self.bound else r
        return h * torch.exp(r) + 0.1  # ORIGIN

    def forward(self, x):
        h = x.new_ones(x.shape[0], 6)
        for t in range(x.shape[1]):
            h = checkpoint(self.cell, h, x[:, t], use_reentrant=False)
        return self.out(torch.log(h)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(428)
    net = Scan(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(928)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 6, 3, generator=gen)
        if i == 2:
            x[1] = 60.0
        loss = F.mse_loss(net(x), torch.ones(4))
        loss.backward()
        opt.step()
        return loss

    return net, step
