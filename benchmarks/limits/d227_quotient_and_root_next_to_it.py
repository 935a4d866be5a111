"""Two faults on neighbouring lines: sin(a) / a at 0, and the root of a learned 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "origins": 2,
    "loss_truth": 0.9654133182,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.0, 0.9]))
        self.v = nn.Parameter(torch.tensor([0.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            gain = torch.sinc(self.a / math.pi)
            level = self.v**1.5
            loss = (gain * (1 + level) - 0.4).square().sum()
        else:
            gain = torch.sin(self.a) / self.a  # ORIGIN
            level = torch.sqrt(self.v) ** 3  # ORIGIN
            loss = (gain * (1 + level) - 0.4).square().sum()
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
    return true
