"""Fully masked rows are repaired in the scores before the softmax."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "fully masked rows are repaired in the scores before the softmax",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk, self.out = nn.Linear(5, 10), nn.Linear(5, 2)

    def forward(self, x, keep):
        q, k = self.qk(x).chunk(2, -1)
        s = (q @ k.transpose(1, 2)).masked_fill(~keep[:, None], -torch.inf)
        dead = ~keep.any(-1)
        s = torch.where(dead[:, None, None], torch.zeros_like(s), s)
        return self.out((s.softmax(-1) @ x).mean(1)) * ~dead[:, None]


def build(fixed: bool = False):
    torch.manual_seed(501)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1001)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 6, 5, generator=gen)
        keep = torch.rand(4, 6, generator=gen) < 0.6
        keep[2] = False
        loss = F.cross_entropy(net(x, keep), torch.arange(4) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
