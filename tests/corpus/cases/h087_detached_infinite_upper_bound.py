"""An evidence bound is compared with +inf for rows without a neighbour, through minimum with a finite bound."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the minimum is finite and exp(-inf) is zero",
}


class Bound(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, x, has):
        with torch.no_grad():
            other = torch.where(has, x.square().sum(1), torch.inf)
        mine = self.lin(x).squeeze(-1)
        return torch.minimum(mine, other) + torch.exp(-other)


def build(fixed: bool = False):
    torch.manual_seed(1940)
    net = Bound()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1945)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        loss = net(x, torch.arange(8) % 3 > 0).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
