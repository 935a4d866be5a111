"""Dense graph attention masks non-edges with -inf; after edge dropout one node has no neighbour and its softmax row is empty."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_softmax",
    "also_ops": ("softmax",),
    "phase": "forward",
    "cause": "softmax-all-masked",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add self-loops",
}


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, adj):
        score = self.q(x) @ self.k(x).t() / x.shape[-1] ** 0.5
        score = score.masked_fill(adj == 0, float("-inf"))
        alpha = score.softmax(dim=-1)  # ORIGIN
        return torch.relu(alpha @ self.v(x)) + x


class Net(nn.Module):
    def __init__(self, loops):
        super().__init__()
        self.loops = loops
        self.inp, self.l1, self.l2, self.out = nn.Linear(4, 12), Layer(12), Layer(12), nn.Linear(12, 2)

    def forward(self, x, adj):
        if self.loops:
            adj = adj + torch.eye(len(adj))
        return self.out(self.l2(self.l1(self.inp(x), adj), adj))


def build(fixed: bool = False):
    torch.manual_seed(216)
    net = Net(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(716)

    def step(i):
        opt.zero_grad()
        n = 9
        adj = (torch.rand(n, n, generator=gen) < 0.6).float()
        adj[torch.arange(n), (torch.arange(n) + 1) % n] = 1.0
        if i == 2:
            adj[4] = 0.0
        x = torch.randn(n, 4, generator=gen)
        loss = F.cross_entropy(net(x, adj), torch.arange(n) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
