"""The infinite weight is clamped before it is used, and is not differentiated."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the infinite weight is clamped before it is used, and is not differentiated",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.seq(x)


def build(fixed: bool = False):
    torch.manual_seed(302)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(802)

    def step(i):
        opt.zero_grad()
        x = torch.randn(20, 5, generator=gen)
        y = torch.randint(0, 3, (20,), generator=gen)
        weight = (1.0 / torch.bincount(y, minlength=4)).clamp(max=10.0)
        loss = F.cross_entropy(net(x), y, weight=weight)
        loss.backward()
        opt.step()
        return loss

    return net, step
