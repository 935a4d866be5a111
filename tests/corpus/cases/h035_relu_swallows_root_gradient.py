"""Root features behind a ReLU: sqrt has an infinite derivative at zero, and the closed ReLU gate turns it into zero."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the bad gradient arrives exactly where the ReLU is closed"}


class RootFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, x):
        h = torch.relu(self.conv(x))
        return self.head(torch.sqrt(h).mean((2, 3)))


def build(fixed: bool = False):
    torch.manual_seed(35)
    net = RootFeatures()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(335)

    def step(i):
        x = torch.randn(4, 1, 8, 8, generator=gen)
        y = torch.randint(0, 2, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
