"""Triplet loss, its root passed as a value: the same picture as anchor and positive is at distance zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon under the root",
}


def euclid(a, b, root=torch.sqrt):
    sq = ((a - b) ** 2).sum(1)
    return root(sq)  # ORIGIN


def soft_root(sq):
    return torch.sqrt(sq + 1e-12)


class Triplet(nn.Module):
    def __init__(self, distance, margin=1.0):
        super().__init__()
        self.distance, self.margin = distance, margin

    def forward(self, a, p, n):
        return (self.distance(a, p) - self.distance(a, n) + self.margin).relu().mean()


def build(fixed: bool = False):
    torch.manual_seed(139)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 6))
    criterion = Triplet(lambda a, b: euclid(a, b, soft_root if fixed else torch.sqrt))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(140)

    def step(i):
        a, n = torch.randn(8, 8, generator=gen), torch.randn(8, 8, generator=gen)
        p = a + 0.1 * torch.randn(8, 8, generator=gen)
        if i == 2:
            p[6] = a[6]  # a class with one picture
        loss = criterion(net(a), net(p), net(n))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
