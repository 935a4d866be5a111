"""A helper sinh(a x) / x of two arguments in one line, one of them shifted, beside log(sum exp) of energies of 300.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "two",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 18.65160492,
}


def helper(x, a, fixed):
    if fixed:
        return a * sum((a * x) ** (2 * n) / math.gamma(2 * n + 2) for n in range(12))
    return torch.sinh(a * x) / x  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7]))
        self.e = nn.Parameter(torch.tensor([300.0, 299.0]))

    def forward(self, fixed):
        if fixed:
            return (helper(self.x, 0.5, True) + helper(self.x + 0.4, 2.0, True) - 1).square().sum() + 0.01 * torch.logsumexp(self.e, 0)
        return (helper(self.x, 0.5, fixed) + helper(self.x + 0.4, 2.0, fixed) - 1).square().sum() + 0.01 * torch.log(torch.exp(self.e).sum())  # ORIGIN


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
