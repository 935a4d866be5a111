"""Radial basis sin(d) / d of two points at one place: the root at 0 in backward, the quotient in forward.

Source: well-known fault (molecular networks with self edges)
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
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.4302232286,
}


class Basis(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 1.0], [2.0, 0.5]]))

    def forward(self, fixed):
        y = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        if fixed:
            s = ((self.x - y) ** 2).sum(1)
            small = torch.where(s < 1e-4, torch.ones_like(s), s)
            basis = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
        else:
            d = torch.sqrt(((self.x - y) ** 2).sum(1))  # ORIGIN
            basis = torch.sin(d) / d  # ORIGIN
        loss = (basis - 0.4).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Basis()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([[0.0, 1.0], [2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    s = ((x - y) ** 2).sum(1)
    small = torch.where(s < 1e-4, torch.ones_like(s), s)
    basis = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
    loss = (basis - 0.4).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
