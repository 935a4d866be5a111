"""Alternating training: in odd steps the encoder has requires_grad False and keeps its values."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "the frozen half is left out of the graph by choice"}


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 3))
        self.dec = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.dec(self.enc(x))


def build(fixed: bool = False):
    torch.manual_seed(30)
    net = AutoEncoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(330)

    def step(i):
        net.enc.requires_grad_(i % 2 == 0)
        x = torch.randn(12, 8, generator=gen)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(net(x), x)
        loss.backward()
        opt.step()
        return loss

    return net, step
