"""Jacobian of a joint pair, (sin(a) - sin(b)) / (a - b), in a loop over joints; two coincide.

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
    "kind": "removable",
    "loss_truth": 0.9393957327,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.4, 1.1]))
        self.b = nn.Parameter(torch.tensor([0.4, -0.3]))

    def forward(self, fixed):
        total = 0.0
        for i in range(2):
            a, b = self.a[i], self.b[i]
            if fixed:
                slope = torch.cos((a + b) / 2) * torch.sinc((a - b) / (2 * math.pi))
            else:
                slope = (torch.sin(a) - torch.sin(b)) / (a - b)  # ORIGIN
            total = total + (slope - 0.2) ** 2
        return total


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
