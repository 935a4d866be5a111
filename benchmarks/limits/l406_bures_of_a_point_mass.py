"""Wasserstein distance of Gaussians, a + b - 2 sqrt(a b), where one has variance 0: the gradient by a is -inf.

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
    "kind": "infinite",
    "loss_truth": 0.566967722,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.0, 0.7]))
        self.register_buffer('b', torch.tensor([0.5, 1.2]))

    def forward(self, fixed):
        if fixed:
            loss = (self.a + self.b - 2 * torch.sqrt(self.a * self.b + 1e-12)).sum()
        else:
            loss = (self.a + self.b - 2 * torch.sqrt(self.a * self.b)).sum()  # ORIGIN
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
    true['a'][0] = -math.inf
    return true
