"""Frozen, unused and zero-initialised parts: their gradients are None or exactly zero for good reason."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "zero gradients come from the structure of the model, not from underflow",
}


class LoraNet(nn.Module):
    def __init__(self, dim=16, rank=2):
        super().__init__()
        self.base = nn.Linear(dim, dim).requires_grad_(False)
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)
        self.segment = nn.Embedding(4, dim)
        self.unused = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x, segment):
        h = x + self.segment(segment)
        return self.head(torch.relu(self.base(h) + self.up(self.down(h))))


def build(fixed: bool = False):
    torch.manual_seed(606)
    net = LoraNet()
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-3)
    gen = torch.Generator().manual_seed(706)

    def step(i):
        x = torch.randn(12, 16, generator=gen)
        segment = torch.randint(0, 2, (12,), generator=gen)  # two of four segments never occur
        opt.zero_grad(set_to_none=i % 2 == 0)
        loss = nn.functional.cross_entropy(net(x, segment), x[:, :3].argmax(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
