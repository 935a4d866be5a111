"""sin(x) / x cos(x) with three statements in a line, at x = 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 4.8649329,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.9]))
        self.a = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            y = torch.sinc(x / math.pi) * torch.cos(x)
        else:
            s = torch.sin(x); c = torch.cos(x); y = s / x * c  # ORIGIN
        return (self.a * y).sum().exp()


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
