"""Tukey's g-and-h transform (exp(g z) - 1) / g exp(h z^2 / 2) with a skewness g that starts at 0.

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
    "loss_truth": 0.1719706206,
}


class GH(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(0.0))
        self.h = nn.Parameter(torch.tensor(0.1))

    def forward(self, z):
        return (torch.exp(self.g * z) - 1) / self.g * torch.exp(self.h * z**2 / 2)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gh = GH()
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, fixed):
        z = torch.tensor([-1.2, -0.3, 0.4, 1.7])
        if fixed:
            g, h = self.gh.g, self.gh.h
            y = (z + g * z**2 / 2 + g**2 * z**3 / 6) * torch.exp(h * z**2 / 2)
        else:
            y = self.gh(z)
        return (self.scale * y - torch.tensor([-1.0, -0.4, 0.7, 3.0])).pow(2).mean()


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
