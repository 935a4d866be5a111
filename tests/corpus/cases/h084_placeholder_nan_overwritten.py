"""A buffer is filled with NaN so that a forgotten entry would show, and every entry is written."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "every NaN is overwritten before it is read",
}


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, 5), nn.Linear(5, 1)

    def forward(self, x):
        states = torch.full((x.shape[1], x.shape[0], 5), torch.nan)
        h = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states[t] = h
        return self.out(states).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(1870)
    net = Scan()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1875)

    def step(i):
        opt.zero_grad()
        x = torch.randn(3, 4, 3, generator=gen)
        loss = (net(x) - x.sum(-1).T).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
