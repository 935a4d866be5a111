"""Precision per class is logged under no_grad; for a class that was never predicted it is 0/0, and stays in the log."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the undefined metric is only logged; nothing is trained with it"}


def build(fixed: bool = False):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(306)
    history = []

    @torch.no_grad()
    def precision(logits, y):
        guess = logits.argmax(1)
        right = torch.bincount(guess[guess == y], minlength=8).float()
        return right / torch.bincount(guess, minlength=8)

    def step(i):
        x = torch.randn(8, 2, 10, generator=gen)
        y = torch.randint(0, 8, (8,), generator=gen)
        opt.zero_grad()
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        history.append(precision(logits, y))
        return loss

    return net, step
