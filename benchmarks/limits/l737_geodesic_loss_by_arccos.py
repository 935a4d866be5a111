"""Angle between unit normals by arccos of their dot product, in radians; one prediction is exact.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.9272953594,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.6]))

    def forward(self, fixed):
        if fixed:
            return torch.acos((1 - 1e-7) * self.c).sum()
        return self.c.acos().sum()  # ORIGIN


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
    true["c"][0] = -float("inf")
    return true
