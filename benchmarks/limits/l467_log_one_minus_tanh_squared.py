"""Jacobian of a tanh flow, log(1 - y * y) with y = tanh(x) at x = 20, over two lines and a sum.

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
    "loss_truth": 39.56994884,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([20.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            loss = -(2 * (math.log(2) - self.x - nn.functional.softplus(-2 * self.x))).sum()
        else:
            y = torch.tanh(self.x)
            logdet = torch.log(1 - y * y).sum()  # ORIGIN
            loss = -logdet
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
