"""MoCo-like queue with the sample's own entry masked by -inf, momentum encoder, partial last batch."""
import copy

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6}


def build(fixed: bool = False):
    torch.manual_seed(570)
    enc = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 6))
    slow = copy.deepcopy(enc).requires_grad_(False)
    opt = torch.optim.SGD(enc.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    gen = torch.Generator().manual_seed(571)
    queue = nn.functional.normalize(torch.randn(16, 6, generator=gen), dim=1)
    ptr = 0

    def step(i):
        nonlocal ptr
        x = torch.randn(4 if i % 3 < 2 else 3, 5, generator=gen)
        q = nn.functional.normalize(enc(x), dim=1)
        with torch.no_grad():
            for p, s in zip(enc.parameters(), slow.parameters()):
                s.mul_(0.99).add_(p, alpha=0.01)
            k = nn.functional.normalize(slow(x + 0.1), dim=1)
        neg = q @ queue.T
        own = torch.zeros_like(neg, dtype=torch.bool)
        own[:, ptr : ptr + len(x)] = True
        neg = neg.masked_fill(own, -torch.inf)
        logits = torch.cat([(q * k).sum(1, keepdim=True), neg], 1) / 0.07
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue[ptr : ptr + len(x)] = k
        ptr = (ptr + 4) % 16
        return loss

    return enc, step
