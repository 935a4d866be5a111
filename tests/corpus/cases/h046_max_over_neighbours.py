"""Scatter amax starts from -inf and every node has a self-loop."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "scatter amax starts from -inf and every node has a self-loop",
}


class Gnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 2)

    def forward(self, x, src, dst):
        h = self.a(x)
        top = torch.full_like(h, -torch.inf).scatter_reduce(0, dst[:, None].expand(-1, 12), h[src], "amax")
        return self.b(F.relu(top))


def build(fixed: bool = False):
    torch.manual_seed(310)
    net = Gnn()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(810)

    def step(i):
        opt.zero_grad()
        n = 10
        src = torch.cat([torch.arange(n), torch.randint(0, n, (20,), generator=gen)])
        dst = torch.cat([torch.arange(n), torch.randint(0, n, (20,), generator=gen)])
        x = torch.randn(n, 4, generator=gen)
        loss = F.cross_entropy(net(x, src, dst), torch.arange(n) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
