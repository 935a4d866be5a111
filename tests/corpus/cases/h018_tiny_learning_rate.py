"""Fine-tuning with a learning rate of 1e-6 in float32: the updates are small and all larger than half an ulp of most weights."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "Adam's update of about 1e-6 still moves weights of size 0.2"}


def build(fixed: bool = False):
    torch.manual_seed(18)
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(318)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
