"""torch.std of a column that is constant, used as a penalty and floored as a divisor."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "torch gives std the gradient zero where the deviation is zero",
}


class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)

    def forward(self, x):
        s = self.lin(x).std(0)
        return F.relu(1 - s).mean() + (self.lin(x) / s.clamp(min=0.1)).square().mean() * 1e-2


def build(fixed: bool = False):
    torch.manual_seed(1849)
    net = Spread()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1854)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 3, generator=gen)
        if i == 2:
            x = x[:1].expand(6, 3)
        loss = net(x)
        loss.backward()
        opt.step()
        return loss

    return net, step
