"""Arc-cosine kernel sin(t) + (pi - t) cos(t) with t = acos(c) of an input with itself: the slope
is pi, two infinities cancel.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.08527204179,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.6, -0.3]))

    def forward(self, fixed):
        c = self.c
        if fixed:
            u = (1 - c) * (1 + c)
            one = u == 0
            w = torch.where(one, torch.ones_like(u), u)
            t = torch.where(
                one, torch.zeros_like(c), torch.acos(torch.where(one, torch.zeros_like(c), c))
            )
            kernel = torch.where(one, math.pi * c, w.sqrt() + (math.pi - t) * c)
        else:
            theta = torch.acos(c)  # ORIGIN
            kernel = torch.sin(theta) + (math.pi - theta) * torch.cos(theta)
        return (kernel / math.pi - torch.tensor([0.8, 0.5, 0.3])).pow(2).sum()


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
