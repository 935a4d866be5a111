"""Learned curvature of a hyperbolic layer, tanh(sqrt(c) r) / sqrt(c), that starts at 0, where the
map is the identity.

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
    "loss_truth": 0.38,
}


class Hyperbolic(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor(0.0))

    def forward(self, r):
        s = self.c.sqrt()
        return torch.tanh(s * r) / s  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = Hyperbolic()
        self.r = nn.Parameter(torch.tensor([0.5, 1.0, 1.8]))

    def forward(self, fixed):
        if fixed:
            y = self.r - self.map.c * self.r**3 / 3
        else:
            y = self.map(self.r)
        return (y - torch.tensor([0.4, 0.9, 1.2])).pow(2).sum()


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
