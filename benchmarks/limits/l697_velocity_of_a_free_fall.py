"""Speed sqrt(2 g h) after a fall from height 0, which is to become larger.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.8718688097,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        h = self.h
        if fixed:
            h = h + torch.tensor([1e-13, 0.0, 0.0])
        speed = torch.sqrt(2 * 9.81 * h)  # ORIGIN
        return (speed - torch.tensor([1.0, 3.0, 5.0])).pow(2).mean()


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
    true["h"][0] = -math.inf
    return true
