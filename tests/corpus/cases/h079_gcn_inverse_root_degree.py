"""GCN normalisation as everybody writes it: degree ** -0.5 is infinite for isolated nodes and set to zero by
masked_fill_.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the degree carries no gradient, and the infinity is replaced before it is used",
}


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, adj):
        d = adj.sum(1).pow(-0.5)
        d.masked_fill_(d == float("inf"), 0)
        norm = d[:, None] * adj * d[None]
        return norm @ self.b(torch.relu(norm @ self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(1807)
    net = GCN()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1812)

    def step(i):
        opt.zero_grad()
        adj = (torch.rand(7, 7, generator=gen) > 0.6).float().triu(1)
        adj = adj + adj.T
        adj[3] = adj[:, 3] = 0
        loss = F.cross_entropy(net(torch.randn(7, 4, generator=gen), adj), torch.arange(7) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
