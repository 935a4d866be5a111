"""Activation checkpointing of blocks that use -inf masks: the recomputation meets the same intended infinities again."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {"healthy": True, "n_steps": 5, "why": "the masks leave at least one key a row, in both passes"}


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, h, pad):
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        score = (q @ k.transpose(1, 2) / 4).masked_fill(pad.unsqueeze(1), float("-inf"))
        return h + self.out(score.softmax(-1) @ v)


class Encoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.emb = nn.Embedding(20, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(2)])
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        h, pad = self.emb(ids), ids == 0
        for k, block in enumerate(self.blocks):
            h = checkpoint(block, h, pad, use_reentrant=k == 1)
        return self.head(h[:, 0])


def build(fixed: bool = False):
    torch.manual_seed(32)
    net = Encoder()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(332)

    def step(i):
        ids = torch.randint(1, 20, (5, 7), generator=gen)
        ids = ids * (torch.arange(7) < torch.randint(1, 8, (5, 1), generator=gen))
        y = torch.randint(0, 2, (5,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
