"""Distances of points to their nearest medians, sqrt(sum (p - m)^2), where one point is a median
itself.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.6083802566,
    "bound": 0.34,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.medians = nn.Parameter(torch.tensor([[0.0, 1.0], [3.0, 2.0]]))

    def forward(self, fixed):
        points = torch.tensor([[0.0, 1.0], [2.5, 2.5], [3.5, 1.0]])
        d2 = ((points[:, None] - self.medians) ** 2).sum(-1)
        if fixed:
            zero = d2 == 0
            d = torch.where(zero, d2, torch.where(zero, torch.ones_like(d2), d2).sqrt())
        else:
            d = torch.sqrt(d2)  # ORIGIN
        return d.min(dim=1).values.mean()


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
    true["medians"][0] = math.nan
    return true
