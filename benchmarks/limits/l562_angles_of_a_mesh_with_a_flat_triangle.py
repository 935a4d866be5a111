"""Angle at a corner by acos of a normalised product, where two edges are the same direction.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "domain",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.927295218,
    "bound": 1.5,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))

    def forward(self, fixed):
        other = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        if fixed:
            e = self.e[1]
            return torch.acos(e @ other[1] / e.norm())
        unit = self.e / self.e.norm(dim=1, keepdim=True)
        return torch.acos((unit * other).sum(dim=1)).sum()  # ORIGIN


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
    true["e"][0, 1] = math.nan
    return true
