"""Spectral flatness, geometric mean by logarithms over arithmetic mean, of a spectrum with a band
of power 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.04,
}


def flatness(power):
    geometric = torch.exp(torch.log(power).mean())  # ORIGIN
    return geometric / power.mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor([0.5, 0.0, 1.2, 0.8]))

    def forward(self, fixed):
        if fixed:
            p = self.power
            return (p[0] - 0.3) ** 2 + 1e-6 * p[1]
        return flatness(self.power) + (self.power[0] - 0.3) ** 2


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
    true["power"][1] = float("inf")
    return true
