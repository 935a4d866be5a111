"""A careful loop looks at loss and gradients with isfinite before it steps; nothing is ever wrong."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "the checks read values and change nothing",
}


def build(fixed: bool = False):
    torch.manual_seed(614)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net.append(nn.Linear(8, 3))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(714)
    skipped = []

    def step(i):
        x = torch.rand(6, 1, 8, 8, generator=gen)
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        sound = torch.isfinite(loss) and all(bool(torch.isfinite(p.grad).all()) for p in net.parameters())
        if sound:
            opt.step()
        else:
            skipped.append(i)
        return loss

    return net, step
