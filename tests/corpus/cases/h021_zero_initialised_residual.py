"""Residual branches whose last layer starts at zero: at step 0 the layers inside get a gradient of exactly zero, later not."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "a zero gradient at the first step follows from the initialisation and passes",
}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        self.last = nn.Linear(dim, dim)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, h):
        return h + self.last(self.inner(h))


def build(fixed: bool = False):
    torch.manual_seed(21)
    net = nn.Sequential(nn.Linear(5, 16), Block(16), Block(16), nn.Linear(16, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(321)

    def step(i):
        x = torch.randn(12, 5, generator=gen)
        y = torch.randint(0, 3, (12,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
