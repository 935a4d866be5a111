"""Distances to oneself are set to inf before the minimum."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "distances to oneself are set to inf before the minimum",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x):
        return self.emb(x)


def build(fixed: bool = False):
    torch.manual_seed(402)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(902)

    def step(i):
        opt.zero_grad()
        z = net(torch.randn(12, 4, generator=gen))
        d = torch.cdist(z, z)
        d = d + torch.diag(torch.full((12,), torch.inf))
        nearest = d.min(1).values
        loss = -torch.log(nearest + 1e-3).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
