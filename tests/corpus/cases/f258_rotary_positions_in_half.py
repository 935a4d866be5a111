"""Rotary positions are kept in the model's float16; beyond position 65504 they are infinite and their sine is NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_to_copy",
    "also_ops": ("to", "copy_"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "keep positions and angles in float32",
}


class Rotary(nn.Module):
    def __init__(self, dim, dtype):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim))

    def forward(self, q, start):
        pos = torch.arange(start, start + q.shape[1]).to(self.dtype)  # ORIGIN
        ang = torch.outer(pos, self.inv_freq.to(self.dtype)).float()
        c, s = ang.cos().to(q.dtype), ang.sin().to(q.dtype)
        a, b = q.chunk(2, -1)
        return torch.cat([a * c - b * s, a * s + b * c], -1)


class Block(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.q, self.k, self.o = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.rope = Rotary(8, dtype)

    def forward(self, x, start):
        q, k = self.rope(self.q(x), start), self.rope(self.k(x), start)
        return self.o((q @ k.mT / 8**0.5).softmax(-1) @ x).float().mean(1)


def build(fixed: bool = False):
    torch.manual_seed(977)
    net = Block(torch.float32 if fixed else torch.float16).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(982)
    net.rope.inv_freq = net.rope.inv_freq.float()

    def step(i):
        opt.zero_grad()
        x = torch.randn(2, 6, 8, generator=gen).half()
        loss = F.cross_entropy(net(x, 70000 if i == 2 else 40), torch.tensor([0, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
