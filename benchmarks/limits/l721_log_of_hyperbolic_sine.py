"""log(sinh(x)) of a strongly damped line: sinh is out of range from 90 on.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "sinh",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.728377215,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([120.0, 2.0]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            y = x + torch.log1p(-torch.exp(-2 * x)) - math.log(2)
        else:
            y = torch.log(torch.sinh(x))  # ORIGIN
        return ((y - torch.tensor([100.0, 1.0])) / 10).pow(2).sum()


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
