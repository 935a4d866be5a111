"""clamp with infinite bounds and a bound per feature, some of them infinite."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "infinite bounds bound nothing",
}


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("low", torch.tensor([0.0, -torch.inf, -1.0]))
        self.register_buffer("high", torch.tensor([torch.inf, torch.inf, 1.0]))

    def forward(self, x):
        return torch.clamp(self.lin(x), self.low, self.high).clamp(max=float("inf"))


def build(fixed: bool = False):
    torch.manual_seed(1884)
    net = Bounded()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1889)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        loss = (net(x) - x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
