"""Tensor hooks clamp gradients, forward hooks count dead units."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "tensor hooks clamp gradients, forward hooks count dead units",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 3)
        self.dead = []
        self.a.register_forward_hook(lambda m, args, out: self.dead.append((out <= 0).all(0).sum()))
        for p in self.parameters():
            p.register_hook(lambda g: g.clamp(-0.1, 0.1))

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def build(fixed: bool = False):
    torch.manual_seed(405)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(905)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(torch.randn(8, 4, generator=gen)), torch.arange(8) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
