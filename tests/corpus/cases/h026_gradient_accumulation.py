"""Gradients are accumulated over three backward passes before each optimizer step."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "gradients that grow between two updates are summed on purpose"}


def build(fixed: bool = False):
    torch.manual_seed(26)
    net = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(326)

    def step(i):
        opt.zero_grad()
        total = torch.zeros(())
        for _ in range(3):
            x = torch.randn(4, 1, 16, generator=gen)
            y = (x.mean((1, 2)) > 0).long()
            loss = nn.functional.cross_entropy(net(x), y) / 3
            loss.backward()
            total += loss.detach()
        opt.step()
        return total

    return net, step
