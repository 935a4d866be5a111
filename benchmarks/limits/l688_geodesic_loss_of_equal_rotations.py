"""Angle acos((trace(R1^T R2) - 1) / 2) between a rotation and its goal, which it has reached.

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
    "kind": "no-limit",
    "loss_truth": 0.7,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.5, 1.0]))

    def forward(self, fixed):
        goal = torch.tensor([0.5, 0.3])
        cosine = torch.cos(self.t - goal)
        if fixed:
            angle = (self.t - goal).abs()
        else:
            angle = torch.acos(cosine)  # ORIGIN
        return angle.sum()


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
    true["t"][0] = math.nan
    return true
