"""Bennett: log(mean(exp(-beta u))) of energies of -900 in a helper.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -899.01798,
}


def free(u, beta):
    weight = torch.exp(-beta * u)
    return -torch.log(weight.mean(dim=1)) / beta  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([[-900.0, -899.0, 3.0], [0.3, 0.2, 0.1]]))

    def forward(self, fixed):
        if fixed:
            loss = -(torch.logsumexp(-self.u, 1) - math.log(3)).sum()
        else:
            loss = free(self.u, 1.0).sum()
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
