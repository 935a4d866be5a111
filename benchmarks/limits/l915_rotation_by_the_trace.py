"""Angle over sine from a trace, acos(c) / sqrt(1 - c^2) at c = 1.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.4558421326,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.6, -0.3]))
        self.w = nn.Parameter(torch.tensor([0.4, 1.0, 0.2]))

    def forward(self, fixed):
        c = self.c
        if fixed:
            near = c > 1 - 1e-3
            s = torch.where(near, torch.zeros_like(c), c)
            d = 1 - c
            q = torch.where(near, 1 + d / 3 + 2 * d**2 / 15, torch.acos(s) / torch.sqrt(1 - s**2))
        else:
            q = torch.acos(c) / torch.sqrt(1 - c**2)  # ORIGIN
        return (self.w * q - 0.5).square().sum()


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
