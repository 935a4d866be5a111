"""Strong dropout over a very sparse ReLU layer: nine activations in ten are exactly zero."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "exact zeros of ReLU and dropout are no underflow"}


class SparseCoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(8, 64)
        nn.init.constant_(self.enc.bias, -0.6)
        self.drop, self.dec = nn.Dropout(0.5), nn.Linear(64, 8)

    def forward(self, x):
        code = torch.relu(self.enc(x))
        return self.dec(self.drop(code)), code


def build(fixed: bool = False):
    torch.manual_seed(20)
    net = SparseCoder()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(320)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        out, code = net(x)
        loss = nn.functional.mse_loss(out, x) + 1e-3 * code.abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
