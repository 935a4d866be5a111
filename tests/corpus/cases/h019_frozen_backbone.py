"""Linear probing: the backbone is frozen and in evaluation mode, only the head is given to the optimizer."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "parameters without gradient do not move, as asked"}


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.backbone.requires_grad_(False).eval()
        self.head = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x)
        return self.head(h)


def build(fixed: bool = False):
    torch.manual_seed(19)
    net = Probe()
    opt = torch.optim.SGD(net.head.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(319)

    def step(i):
        x = torch.randn(8, 1, 8, 8, generator=gen)
        y = torch.randint(0, 3, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
