"""A GCN normalises by degree ** -0.5 and multiplies with the adjacency; an isolated node has inf times zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-fraction-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add self-loops",
}


class Gcn(nn.Module):
    def __init__(self, loops):
        super().__init__()
        self.loops = loops
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 3)

    def propagate(self, x, adj):
        deg = adj.sum(1)
        inv = deg.pow(-0.5)  # ORIGIN
        return inv[:, None] * (adj @ (inv[:, None] * x))

    def forward(self, x, adj):
        if self.loops:
            adj = adj + torch.eye(len(adj))
        return self.b(self.propagate(torch.relu(self.a(self.propagate(x, adj))), adj))


def build(fixed: bool = False):
    torch.manual_seed(417)
    net = Gcn(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(917)

    def step(i):
        opt.zero_grad()
        adj = (torch.rand(9, 9, generator=gen) < 0.5).float()
        adj = torch.maximum(adj, adj.t())
        adj[0, 1] = adj[1, 0] = 1.0
        adj[torch.arange(9), torch.arange(8, -1, -1)] = 1.0
        if i == 2:
            adj[5] = 0
            adj[:, 5] = 0
        x = torch.randn(9, 4, generator=gen)
        loss = F.cross_entropy(net(x, adj), torch.arange(9) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
