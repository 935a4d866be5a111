"""Checkpointed blocks under bfloat16 autocast with gradient clipping."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "checkpointed blocks under bfloat16 autocast with gradient clipping",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)) for _ in range(3)]
        )
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        for b in self.blocks:
            x = x + checkpoint(b, x, use_reentrant=False)
        return self.out(x)


def build(fixed: bool = False):
    torch.manual_seed(504)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1004)

    def step(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(torch.randn(6, 12, generator=gen))
        loss = F.cross_entropy(out.float(), torch.arange(6) % 3)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return loss

    return net, step
