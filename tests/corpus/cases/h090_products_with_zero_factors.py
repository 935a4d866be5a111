"""prod and cumprod over factors that are exactly zero."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "torch differentiates products without dividing",
}


class Survival(nn.Module):
    def __init__(self):
        super().__init__()
        self.hazard = nn.Linear(3, 5)

    def forward(self, x, dead):
        s = (1 - torch.sigmoid(self.hazard(x))) * ~dead
        return torch.cumprod(s, 1).sum(1) + s.prod(1)


def build(fixed: bool = False):
    torch.manual_seed(1891)
    net = Survival()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1896)

    def step(i):
        opt.zero_grad()
        dead = torch.rand(6, 5, generator=gen) < 0.3
        loss = (net(torch.randn(6, 3, generator=gen), dead) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
