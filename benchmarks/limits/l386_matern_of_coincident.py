"""Matern 3/2 covariance of coincident points, in a list comprehension.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2653841126,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.2, 0.1], [1.0, 0.4]]))
        self.y = nn.Parameter(torch.tensor([[0.2, 0.1], [0.3, -0.6]]))

    def forward(self, fixed):
        if fixed:
            r = (self.x[1] - self.y[1]).norm()
            k = (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)
            loss = (k - 0.5).square() + 0.25 + 0 * (self.x[0].sum() + self.y[0].sum())
        else:
            r = torch.stack([(a - b).square().sum().sqrt() for a, b in zip(self.x, self.y)])  # ORIGIN
            k = (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)
            loss = (k - 0.5).square().sum()
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
