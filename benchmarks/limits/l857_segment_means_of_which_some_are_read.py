"""Means of segments by index_add, of which only those that have members are read.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.3625,
}


class SegmentMean(nn.Module):
    def forward(self, x, segment, n):
        total = torch.zeros(n, dtype=x.dtype).index_add(0, segment, x)
        weight = torch.zeros(n, dtype=x.dtype).index_add(0, segment, torch.ones_like(x))
        return total / weight  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 0.9, -0.3, 0.4]))
        self.mean = SegmentMean()

    def forward(self, fixed):
        segment = torch.tensor([0, 0, 2, 2])
        if fixed:
            a, b = self.x[:2].mean(), self.x[2:].mean()
            return (a - 0.1) ** 2 + (b - 0.1) ** 2
        mean = self.mean(self.x, segment, 3)
        return ((mean - 0.1).pow(2) * torch.tensor([1.0, 0.0, 1.0])).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
