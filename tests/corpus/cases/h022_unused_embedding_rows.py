"""A large embedding table of which each batch touches a few rows; the gradients of the others are zero."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "rows that were not looked up have no gradient"}


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(200, 8), nn.Embedding(300, 8)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, u, v):
        return self.mlp(torch.cat([self.user(u), self.item(v)], -1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(22)
    net = TwoTower()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(322)

    def step(i):
        u, v = torch.randint(0, 5, (12,), generator=gen), torch.randint(0, 6, (12,), generator=gen)
        y = (torch.rand(12, generator=gen) < 0.5).float()
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(u, v), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
