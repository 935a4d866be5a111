"""Log-power log(|z|^2) of a bin of magnitude 1e-24.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -1.105240845,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.re = nn.Parameter(torch.tensor([6e-25, 0.6]))
        self.im = nn.Parameter(torch.tensor([8e-25, -0.8]))

    def forward(self, fixed):
        if fixed:
            loss = 2 * torch.log(torch.hypot(self.re * 1e24, self.im * 1e24)).sum() * 0.01 - 4 * 24 * math.log(10) * 0.01
        else:
            z = torch.complex(self.re, self.im)
            power = z.real**2 + z.imag**2
            loss = torch.log(power).sum() * 0.01  # ORIGIN
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
