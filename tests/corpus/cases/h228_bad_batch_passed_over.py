"""A loss of an empty batch is NaN; the loop looks before it goes backward and takes the next batch."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the NaN is never differentiated: the guard fires",
}


def build(fixed: bool = False):
    torch.manual_seed(828)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(928)

    def batch(empty):
        x = torch.randn(16, 4, generator=gen)
        y = x[:, :3].argmax(1)
        return x, torch.full_like(y, -100) if empty else y

    def step(i):
        for attempt in range(2):
            x, y = batch(i == 2 and attempt == 0)
            loss = nn.functional.cross_entropy(net(x), y)
            if torch.isfinite(loss):
                break
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
