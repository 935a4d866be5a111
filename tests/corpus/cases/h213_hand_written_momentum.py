"""An optimizer written out under no_grad: momentum, norm-scaled steps with an epsilon, and decoupled decay."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 15,
    "why": "the division by the gradient norm is guarded, also where the gradient is zero",
}


class Hinge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(613)
    net = Hinge()
    gen = torch.Generator().manual_seed(713)
    momentum = [torch.zeros_like(p) for p in net.parameters()]

    def step(i):
        y = torch.randint(0, 2, (16,), generator=gen) * 2.0 - 1
        x = 0.1 * torch.randn(16, 3, generator=gen) + y.unsqueeze(1)
        for p in net.parameters():
            p.grad = None
        loss = torch.relu(1 - 2 * y * net(x)).mean()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), momentum, strict=True):
                m.mul_(0.9).add_(p.grad / (p.grad.norm() + 1e-8), alpha=0.1)
                p.mul_(1 - 1e-4).sub_(0.5 * m)
        return loss

    return net, step
