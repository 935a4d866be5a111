"""Lea-Catcheside factor 2 (exp(-g) - 1 + g) / g^2 of a dose without repair, by in-place subtraction
of the linear part.

Source: well-known fault
"""

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
    "loss_truth": 0.1073119434,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.repair = nn.Parameter(torch.tensor([0.0, 0.7, 2.0]))

    def factor(self, g):
        top = torch.exp(-g)
        top = top - 1
        top = top + g
        return 2 * top / g.square()  # ORIGIN

    def forward(self, fixed):
        g = self.repair * 1.5
        if fixed:
            near = g.abs() < 1e-3
            w = torch.where(near, torch.ones_like(g), g)
            G = torch.where(near, 1 - g / 3 + g**2 / 12, 2 * (torch.expm1(-w) + w) / w**2)
        else:
            G = self.factor(g)
        return (0.3 * 2.0 + 0.03 * G * 4.0 - 0.5).pow(2).sum()


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
