"""Norm of a residual that is exactly 0, written with einsum; any subgradient of length 1 is right.

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
    "kind": "no-limit",
    "loss_truth": 0.894427191,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 2.0], [0.5, -0.5]]))
        self.register_buffer('y', torch.tensor([[1.0, 2.0], [0.1, 0.3]]))

    def forward(self, fixed):
        if fixed:
            loss = torch.linalg.vector_norm(self.x - self.y, dim=1).sum()
        else:
            r = self.x - self.y
            loss = torch.einsum('nd,nd->n', r, r).sqrt().sum()  # ORIGIN
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
    true['x'][0] = math.nan
    return true
