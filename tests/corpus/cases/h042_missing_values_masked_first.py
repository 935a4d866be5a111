"""The NaN of the table are replaced before the first layer, with an indicator."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the NaN of the table are replaced before the first layer, with an indicator",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        known = ~x.isnan()
        filled = torch.where(known, x, torch.zeros_like(x))
        return self.seq(torch.cat([filled, known.float()], -1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(306)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(806)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 4, generator=gen)
        y = x[:, 0].clone()
        x[torch.rand(12, 4, generator=gen) < 0.2] = float("nan")
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
