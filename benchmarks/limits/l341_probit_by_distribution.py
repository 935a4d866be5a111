"""Probit likelihood log(Normal.cdf(z)) at z = -15, through a method of the module.

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
    "loss_truth": 39.62965483,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([-15.0, 0.4, 1.3]))
        self.register_buffer('sign', torch.tensor([1.0, 1.0, -1.0]))

    def cdf(self, z):
        return 0.5 * torch.erfc(-z / math.sqrt(2))

    def forward(self, fixed):
        if fixed:
            loss = -torch.special.log_ndtr(self.w * self.sign).mean()
        else:
            z = self.w * self.sign
            loss = -self.cdf(z).log().mean()  # ORIGIN
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
