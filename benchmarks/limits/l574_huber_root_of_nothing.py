"""Root loss |r|^0.5 squared away: (r^2)^0.5 in a lambda, with a residual of 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "root-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 2.5,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.5, -2.0]))
        self.loss = lambda r: (r * r) ** 0.5  # ORIGIN

    def forward(self, fixed):
        return self.r.abs().sum() if fixed else self.loss(self.r).sum()


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
    true["r"][0] = math.nan
    return true
