"""Transverse distance sin(sqrt(k) r) / sqrt(k) or its hyperbolic twin, with a curvature that
starts flat.

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
    "loss_truth": 0.02343172662,
}


def transverse(k, r):
    root = torch.sqrt(torch.abs(k))
    closed = torch.sin(root * r) / root  # ORIGIN
    opened = torch.sinh(root * r) / root
    return torch.where(k >= 0, closed, opened)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(0.0))
        self.h = nn.Parameter(torch.tensor(0.7))

    def forward(self, fixed):
        r = torch.tensor([0.2, 0.5, 0.9]) / self.h
        if fixed:
            d = r - self.k * r**3 / 6
        else:
            d = transverse(self.k, r)
        return (torch.log(d) - torch.tensor([-1.0, -0.4, 0.3])).pow(2).mean()


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
