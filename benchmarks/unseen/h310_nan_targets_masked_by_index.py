"""A multi-task table with NaN targets: the missing ones are dropped by indexing before the loss."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "NaN targets never enter the arithmetic"}


def build(fixed=False):
    torch.manual_seed(321)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(322)
    mape = []

    def step(i):
        x = torch.randn(12, 4, generator=gen)
        y = x[:, :3] ** 2
        y[torch.rand(12, 3, generator=gen) < 0.3] = float("nan")
        out = net(x)
        have = ~torch.isnan(y)
        loss = (out[have] - y[have]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            mape.append(((out - y) / y).abs().nanmean().item())
        return loss

    return net, step
