"""Entropy of sparse attention by the double where: argument and result are both guarded."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the logarithm never sees a zero, forward or backward"}


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.score, self.out = nn.Linear(4, 16), nn.Linear(16, 1), nn.Linear(16, 2)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        raw = torch.relu(self.score(h).squeeze(-1) + 0.1)
        p = raw / (raw.sum(1, keepdim=True) + 1e-3)
        positive = p > 0
        safe = torch.where(positive, p, torch.ones_like(p))
        entropy = -torch.where(positive, p * safe.log(), torch.zeros_like(p)).sum(1)
        return self.out((p.unsqueeze(-1) * h).sum(1)), entropy.mean()


def build(fixed: bool = False):
    torch.manual_seed(9)
    net = Sparse()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(309)

    def step(i):
        x = torch.randn(6, 8, 4, generator=gen)
        y = torch.randint(0, 2, (6,), generator=gen)
        opt.zero_grad()
        logits, entropy = net(x)
        loss = nn.functional.cross_entropy(logits, y) + 0.01 * entropy
        loss.backward()
        opt.step()
        return loss

    return net, step
