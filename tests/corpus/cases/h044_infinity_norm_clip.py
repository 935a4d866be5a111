"""Clipping by the infinity norm with an infinite limit only measures."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "clipping by the infinity norm with an infinite limit only measures",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.seq(x)


def build(fixed: bool = False):
    torch.manual_seed(308)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(808)

    def step(i):
        x = torch.randn(12, 4, generator=gen)
        loss = F.cross_entropy(net(x), torch.arange(12) % 3)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=float("inf"), norm_type=float("inf"))
        opt.step()
        return loss

    return net, step
