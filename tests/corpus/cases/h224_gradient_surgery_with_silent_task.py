"""Projecting conflicting gradients: a task without gradient is never in conflict, so its norm of zero never divides."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the projection is taken only where the product of the gradients is negative",
}


def flat(loss, params):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])


def build(fixed: bool = False):
    torch.manual_seed(824)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=0.1)
    gen = torch.Generator().manual_seed(924)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        out = net(x)
        first = nn.functional.mse_loss(out[:, 0], x[:, 0])
        second = torch.relu(out[:, 1].abs() - (100.0 if i % 2 else 0.0)).mean()
        g1, g2 = flat(first, params), flat(second, params)
        if torch.dot(g1, g2) < 0:
            g1 = g1 - torch.dot(g1, g2) / g2.square().sum() * g2
        for p, g in zip(params, (g1 + g2).split([p.numel() for p in params]), strict=True):
            p.grad = g.view_as(p)
        opt.step()
        return first + second

    return net, step
