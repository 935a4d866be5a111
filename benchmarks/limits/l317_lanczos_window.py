"""Lanczos kernel, the product of two sinc functions, at the centre: 1.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": -0.06308624374961225,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.tensor([0.0, 0.5, 1.3]))

    def forward(self, fixed):
        if fixed:
            kernel = torch.sinc(self.offset) * torch.sinc(self.offset / 3)
            loss = ((kernel - torch.tensor([0.9, 0.5, -0.1])) ** 2).sum() + kernel.prod()
        else:
            x = math.pi * self.offset
            kernel = 3 * torch.sin(x) * torch.sin(x / 3) / x**2  # ORIGIN
            loss = ((kernel - torch.tensor([0.9, 0.5, -0.1])) ** 2).sum() + kernel.prod()
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
