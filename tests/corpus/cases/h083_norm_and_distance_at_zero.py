"""Norms and distances of zero vectors: torch takes zero as the subgradient."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the gradient of a norm at zero is zero in torch",
}


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(6, 3, padding_idx=0)

    def forward(self, a, b):
        u, v = self.emb(a), self.emb(b)
        return (u - v).norm(dim=-1) + torch.linalg.vector_norm(u, dim=-1) + torch.cdist(u, u).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(1828)
    net = Pairs()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        a = torch.tensor([0, 1, 2, 3])
        loss = (net(a, torch.tensor([0, 1, 4, 5])) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
