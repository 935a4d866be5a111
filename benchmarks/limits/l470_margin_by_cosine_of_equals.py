"""ArcFace with normalised features: the sine by sqrt(1 - c^2) at c = 1, in a helper: the gradient is +inf.

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
    "loss_truth": -0.4141781032,
}


def margin(c, m):
    sine = torch.sqrt(1 - c**2)  # ORIGIN
    return c * math.cos(m) - sine * math.sin(m)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.2, -0.4]))

    def forward(self, fixed):
        if fixed:
            loss = 2.0 * (self.c * math.cos(0.5) - torch.sqrt(1 - self.c**2 + 1e-9) * math.sin(0.5)).sum()
        else:
            loss = 2.0 * margin(self.c, 0.5).sum()
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
    true['c'][0] = math.inf
    return true
