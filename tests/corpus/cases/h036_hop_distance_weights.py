"""Graph distances by Bellman-Ford with inf for 'unreachable'; 1 / (1 + inf) = 0 is the weight of an unreachable pair."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the infinity becomes an exact zero weight"}


def hop_distance(adj):
    n = len(adj)
    dist = torch.where(adj > 0, torch.ones(n, n), torch.full((n, n), torch.inf))
    dist.fill_diagonal_(0.0)
    for _ in range(3):
        dist = torch.minimum(dist, (dist.unsqueeze(2) + dist.unsqueeze(0)).amin(1))
    return dist


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x, weight):
        h = torch.relu(self.inp(weight @ x))
        return self.out(torch.relu(self.mid(weight @ h)))


def build(fixed: bool = False):
    torch.manual_seed(36)
    net = Graph()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(336)

    def step(i):
        adj = (torch.rand(10, 10, generator=gen) < 0.12).float()
        adj = torch.maximum(adj, adj.t())
        weight = 1 / (1 + hop_distance(adj))
        x, y = torch.randn(10, 4, generator=gen), torch.randint(0, 3, (10,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, weight / weight.sum(1, keepdim=True)), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
