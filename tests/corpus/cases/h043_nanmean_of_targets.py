"""The squared error of an unknown target is left out by indexing."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the squared error of an unknown target is left out by indexing",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.seq(x)


def build(fixed: bool = False):
    torch.manual_seed(307)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(807)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 4, generator=gen)
        y = torch.randn(12, 3, generator=gen)
        y[torch.rand(12, 3, generator=gen) < 0.3] = torch.nan
        pred = net(x)
        known = y.isfinite()
        loss = (pred[known] - y[known]).square().mean()
        centre = torch.nanmean(y, 0)
        loss = loss + 0.01 * (pred.mean(0) - centre).abs().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
