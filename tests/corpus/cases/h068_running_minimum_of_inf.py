"""Chamfer distance over padded sets: padding is at distance inf and never the nearest."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "Chamfer distance over padded sets: padding is at distance inf and never the nearest",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, a):
        return a + self.l(a)


def build(fixed: bool = False):
    torch.manual_seed(502)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1002)

    def step(i):
        opt.zero_grad()
        a, b = torch.randn(2, 4, 7, 3, generator=gen)
        pad = torch.arange(7) >= 5
        d = (net(a)[:, :, None] - b[:, None]).square().sum(-1)
        d = d.masked_fill(pad[None, None, :], torch.inf)
        loss = d.min(-1).values.mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
