"""Muon in bfloat16 on an adapter whose down matrix has no gradient at first: zero over epsilon is zero."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the norm of zero is divided by with an epsilon that bfloat16 holds",
}


def orthogonalise(g):
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.to(g.dtype)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(12, 6).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(3, 12) / 12)
        self.up = nn.Parameter(torch.zeros(6, 3))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def build(fixed: bool = False):
    torch.manual_seed(833)
    net = Adapted()
    gen = torch.Generator().manual_seed(933)

    def step(i):
        x = torch.randn(16, 12, generator=gen)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :6])
        loss.backward()
        with torch.no_grad():
            for p in (net.down, net.up):
                p.add_(orthogonalise(p.grad), alpha=-0.02)
        return loss

    return net, step
