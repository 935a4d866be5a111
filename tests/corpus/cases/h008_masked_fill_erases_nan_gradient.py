"""sqrt of a masked channel gives a NaN gradient, which the masked_fill before it replaces by zero."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "masked_fill passes no gradient to what it filled, whatever comes back"}


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 5, padding=2)
        self.head = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x, dropped):
        power = self.conv(x).square().mean(-1)
        power = power.masked_fill(dropped, 0.0)
        return self.head(torch.sqrt(power) * (~dropped))


def build(fixed: bool = False):
    torch.manual_seed(8)
    net = Energy()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(308)

    def step(i):
        x = torch.randn(6, 1, 20, generator=gen)
        dropped = torch.rand(6, 6, generator=gen) < 0.3  # channel dropout
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, dropped), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
