"""Negative log-likelihood of a Student t at a residual whose square leaves float32.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 22.97558804,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([1e25, 2.0]))

    def forward(self, fixed):
        r = self.r
        if fixed:
            y = 4.0 * torch.log(torch.hypot(torch.ones_like(r), r / math.sqrt(3.0)))
        else:
            y = 0.5 * 4.0 * torch.log(1 + r * r / 3.0)  # ORIGIN
        return y.sum() * 0.1


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
    return {name: p.grad for name, p in net.named_parameters()}
