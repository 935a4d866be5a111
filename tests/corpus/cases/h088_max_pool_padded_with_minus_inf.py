"""Max pooling after padding by hand with -inf."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "every window holds a finite number",
}


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4 * 9, 2)

    def forward(self, x):
        h = F.pad(self.conv(x), (1, 1, 1, 1), value=float("-inf"))
        return self.out(F.max_pool2d(h, 2).flatten(1))


def build(fixed: bool = False):
    torch.manual_seed(1821)
    net = Pool()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1826)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(torch.randn(4, 1, 6, 6, generator=gen)), torch.arange(4) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
