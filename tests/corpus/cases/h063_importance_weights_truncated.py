"""The ratio overflows to inf and is truncated, under no_grad."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the ratio overflows to inf and is truncated, under no_grad",
}


class Pi(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)

    def forward(self, x):
        return self.l(x).log_softmax(-1)


def build(fixed: bool = False):
    torch.manual_seed(408)
    net = Pi()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(908)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        logp = net(x)[:, 0]
        behaviour = torch.linspace(-120.0, -0.5, 8)
        with torch.no_grad():
            weight = torch.exp(logp - behaviour).clamp(max=2.0)
        loss = -(weight * logp).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
