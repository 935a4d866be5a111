"""Aspect term of a box loss, (atan(w / h) - atan(w' / h'))^2, of a predicted box whose height is 0.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.08754513676,
}


def aspect(w, h, wt, ht):
    v = torch.atan(wt / ht) - torch.atan(w / h)  # ORIGIN
    return (4 / math.pi**2) * v**2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.8, 0.5]))
        self.h = nn.Parameter(torch.tensor([0.0, 0.7]))

    def forward(self, fixed):
        wt, ht = torch.tensor([1.0, 0.4]), torch.tensor([0.5, 0.6])
        if fixed:
            v = torch.atan2(wt, ht) - torch.atan2(self.w, self.h)
            return ((4 / math.pi**2) * v**2).sum()
        return aspect(self.w, self.h, wt, ht).sum()


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
