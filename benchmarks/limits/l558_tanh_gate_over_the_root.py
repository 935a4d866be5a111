"""A gain by the root of a learned power that starts at 0; the error pulls it up.

Source: well-known fault
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.6499993,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor([0.0, 0.81]))
        self.bias = nn.Parameter(torch.tensor(0.1))

    def forward(self, fixed):
        x = torch.tensor([1.0, 2.0])
        if fixed:
            gain = torch.cat([(self.power[:1] + 1e-12).sqrt(), self.power[1:].sqrt()])
        else:
            gain = self.power.sqrt()  # ORIGIN
        return F.mse_loss(gain * x + self.bias, torch.tensor([0.8, 1.0]))


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
    true["power"][0] = -math.inf
    return true
