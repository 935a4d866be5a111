"""Sinc interpolation over taps in a loop: one tap falls on the sample.

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
    "loss_truth": 1.549271501,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([1.0, 0.3]))
        self.register_buffer('taps', torch.tensor([0.4, -1.0, 0.7]))

    def forward(self, fixed):
        if fixed:
            out = 0.0
            for n in range(3):
                out = out + self.taps[n] * torch.sinc(self.t - n)
            loss = (out - 0.2).pow(2).sum()
        else:
            out = 0.0
            for n in range(3):
                u = math.pi * (self.t - n)
                out = out + self.taps[n] * torch.sin(u) / u  # ORIGIN
            loss = (out - 0.2).pow(2).sum()
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
