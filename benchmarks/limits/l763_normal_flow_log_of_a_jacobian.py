"""Planar flow whose log-determinant is log|prod of slopes|, slopes of 1e-9 in six layers, one after
the other.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.24339595,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.full((6,), 1e-9))

    def forward(self, fixed):
        if fixed:
            return -(torch.log(self.slope.abs()).sum() / 100)
        jacobian = torch.prod(self.slope)
        return -torch.log(jacobian.abs()) / 100  # ORIGIN


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
