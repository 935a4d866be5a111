"""Additive angular margin cos(acos(c) + m) at c = 1: the gradient is +inf.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos-at-one",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "infinite",
    "loss_truth": -0.1706858549,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.3, -0.5]))

    def forward(self, fixed):
        if fixed:
            c = self.c.clamp(max=1 - 1e-7)
            loss = torch.cos(torch.acos(c) + 0.5).sum() + (self.c - c).sum()
        else:
            theta = torch.acos(self.c)  # ORIGIN
            loss = torch.cos(theta + 0.5).sum()
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    true['c'][0] = math.inf
    return true
