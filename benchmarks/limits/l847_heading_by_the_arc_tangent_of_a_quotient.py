"""Heading as atan(dy / dx) of a step straight up, where dx is 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1642704559,
}


class Heading(nn.Module):
    def forward(self, dx, dy):
        return torch.atan(dy / dx)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dx = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.dy = nn.Parameter(torch.tensor([0.8, 0.5]))
        self.heading = Heading()

    def forward(self, fixed):
        y = torch.tensor([1.2, 0.3])
        if fixed:
            return (torch.atan2(self.dy, self.dx) - y).pow(2).sum()
        return (self.heading(self.dx, self.dy) - y).pow(2).sum()


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
