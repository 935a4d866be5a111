"""Sinkhorn in the scaling domain: exp(-cost / eps) of a far point is zero in its whole row, and the scaling divides by it."""

import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div",),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("dtype-underflow",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "subtract each row's smallest cost before the exponential",
}


class Mapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        return x + self.net(x)


def sinkhorn(x, y, shift, eps=0.5, rounds=8):
    cost = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
    relative = cost - cost.amin(1, keepdim=True).detach() if shift else cost
    kernel = torch.exp(-relative / eps)
    u, v = torch.ones(len(x)) / len(x), torch.ones(len(y)) / len(y)
    for _ in range(rounds):
        u = 1 / len(x) / (kernel @ v)  # ORIGIN
        v = 1 / len(y) / (kernel.t() @ u)  # ALSO
    return (u.unsqueeze(1) * kernel * v * cost).sum()


def build(fixed: bool = False):
    torch.manual_seed(84)
    net = Mapper()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(184)

    def step(i):
        x, y = torch.randn(8, 2, generator=gen), torch.randn(8, 2, generator=gen)
        if i == 3:
            x[5] = torch.tensor([14.0, -9.0])
        opt.zero_grad()
        loss = sinkhorn(net(x), y, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
