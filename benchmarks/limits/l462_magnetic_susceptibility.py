"""Brillouin-like coth(x) - 1 / x by tanh, at x = 0, in a shared module.

Source: well-known fault
"""
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
    "loss_truth": 2.003915309,
}


def series(x):
    near = x.abs() < 1e-2
    s = torch.where(near, 1.0, x)
    return torch.where(near, x / 3 - x**3 / 45, 1 / torch.tanh(s) - 1 / s)


class Langevin(nn.Module):
    def forward(self, x):
        return torch.tanh(x).reciprocal() - x.reciprocal()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Parameter(torch.tensor([0.0, 0.8, 2.0]))
        self.response = Langevin()

    def forward(self, fixed):
        if fixed:
            loss = (series(self.field) + series(2 * self.field)).sum()
        else:
            loss = (self.response(self.field) + self.response(2 * self.field)).sum()
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
