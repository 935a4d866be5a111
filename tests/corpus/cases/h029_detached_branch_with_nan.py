"""A diagnostic branch computes the correlation of detached features; for a constant feature it is NaN, and nobody trains on it."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the branch is detached and its value is displayed, nothing else"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)
        self.shown = None

    def forward(self, x):
        h = self.body(x)
        d = h.detach() - h.detach().mean(0)
        self.shown = (d.t() @ d) / (d.norm(dim=0).unsqueeze(1) * d.norm(dim=0).unsqueeze(0))
        return self.head(h)


def build(fixed: bool = False):
    torch.manual_seed(29)
    net = Net()
    with torch.no_grad():
        net.body[2].bias[3] = -9.0  # a unit that is always off
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(329)

    def step(i):
        x = torch.randn(12, 5, generator=gen)
        y = torch.randint(0, 2, (12,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
