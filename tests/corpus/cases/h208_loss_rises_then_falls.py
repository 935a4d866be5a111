"""The data get harder for ten steps, as in a curriculum: the loss rises by three orders of magnitude and then falls again."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 30,
    "why": "a rising loss that turns round is no explosion",
}


def build(fixed: bool = False):
    torch.manual_seed(608)
    net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(708)

    def step(i):
        reach = 1.6 ** min(i, 10)
        x = torch.randn(32, 4, generator=gen)
        target = reach * (x[:, :1] + x[:, 1:2].abs()) / (1.0 if i < 11 else 1.4 ** (i - 10))
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
