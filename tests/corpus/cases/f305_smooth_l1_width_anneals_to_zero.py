"""A smooth L1 loss whose width shrinks to zero: the quadratic side is divided by it, and where() only hides the
result.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "the plain L1 loss once the width is zero",
}


def smooth_l1(prediction, target, beta, safe):
    n = (prediction - target).abs()
    if safe and beta < 1e-5:
        return n.mean()
    quadratic = 0.5 * n.square() / beta  # ORIGIN
    return torch.where(n < beta, quadratic, n - 0.5 * beta).mean()


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.deltas = nn.Linear(24, 4)

    def forward(self, x):
        return self.deltas(self.body(x))


def build(fixed: bool = False):
    torch.manual_seed(938)
    net = BoxHead()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    gen = torch.Generator().manual_seed(38)
    widths = [0.2, 0.15, 0.1, 0.05, 0.0, 0.0]

    def step(i):
        x, target = torch.randn(16, 12, generator=gen), 0.2 * torch.randn(16, 4, generator=gen)
        opt.zero_grad()
        loss = smooth_l1(net(x), target, widths[i], fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
