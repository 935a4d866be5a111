"""Generalised mean pooling with a power of 60 of activations of 20.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 20.99752361,
}


class GeM(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, x):
        return x.pow(self.p).mean(-1).pow(1.0 / self.p)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = GeM(60.0)
        self.x = nn.Parameter(torch.tensor([[20.0, 19.9, 3.0], [1.0, 1.2, 0.9]]))

    def forward(self, fixed):
        if fixed:
            p = self.pool.p
            y = ((torch.logsumexp(p * self.x.log(), -1) - math.log(3)) / p).exp()
        else:
            y = self.pool(self.x)
        return y.sum()


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
