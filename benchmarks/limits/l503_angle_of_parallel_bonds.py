"""Angle between bonds by atan2 of the cross product's length and the dot product, two of them parallel.

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
    "loss_truth": 1.095740362,
    "bound": 2.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, -0.3]]))
        self.register_buffer("b", torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.2, 0.4]]))

    def forward(self, fixed):
        c = torch.linalg.cross(self.a, self.b)
        dot = (self.a * self.b).sum(-1)
        if fixed:
            s = torch.linalg.vector_norm(c, dim=-1)
        else:
            s = c.pow(2).sum(-1).sqrt()  # ORIGIN
        return torch.atan2(s, dot).sum()


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
    true["a"][0, 1:] = math.nan
    return true
