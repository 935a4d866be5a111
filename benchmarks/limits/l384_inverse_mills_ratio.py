"""Density over distribution of the normal law at z = -15: 0 / 0.

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
    "kind": "overflow",
    "loss_truth": 1.985088323,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([-15.0, 0.3, 1.0]))

    def forward(self, fixed):
        if fixed:
            ratio = torch.exp(-self.z.square() / 2 - math.log(2 * math.pi) / 2 - torch.special.log_ndtr(self.z))
            loss = (ratio - 1).square().sum() / 100
        else:
            density = torch.exp(-self.z.square() / 2) / math.sqrt(2 * math.pi)
            ratio = density / torch.special.ndtr(self.z)  # ORIGIN
            loss = (ratio - 1).square().sum() / 100
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
