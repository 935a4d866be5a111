"""A heading by atan2 of a velocity that is exactly zero now and then."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "atan2(0, 0) has a gradient of zero in torch",
}


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        vx, vy = self.v(x).unbind(-1)
        return torch.atan2(vy, vx)


def build(fixed: bool = False):
    torch.manual_seed(1835)
    net = Heading()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1840)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        x[2] = 0
        loss = (net(x) - 0.1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
