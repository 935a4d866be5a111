"""Lion in float32 with units that never fire: the sign of zero is zero, their weights rest and nothing divides."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "a sign needs no epsilon",
}


def build(fixed: bool = False):
    torch.manual_seed(822)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[0].bias[:5] = -30.0
    moments = [torch.zeros_like(p) for p in net.parameters()]
    gen = torch.Generator().manual_seed(922)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = x[:, :3].argmax(1)
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), moments, strict=True):
                p.sub_(1e-3 * torch.sign(0.9 * m + 0.1 * p.grad))
                m.mul_(0.99).add_(p.grad, alpha=0.01)
        return loss

    return net, step
