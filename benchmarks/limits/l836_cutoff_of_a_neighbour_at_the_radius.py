"""Smooth cutoff of an interatomic potential, exp(1 - 1 / (1 - (r / c)^2)) inside by where, of a
neighbour exactly at the radius.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.5204924581,
}


class Cutoff(nn.Module):
    def __init__(self, radius):
        super().__init__()
        self.radius = radius

    def forward(self, r):
        u = r / self.radius
        inside = torch.exp(1 - 1 / (1 - u**2))  # ORIGIN
        return torch.where(u < 1, inside, torch.zeros_like(r))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.5, 2.0, 1.2]))
        self.cutoff = Cutoff(2.0)

    def forward(self, fixed):
        q = torch.tensor([0.8, 0.5, -0.4])
        if fixed:
            keep = [0, 2]
            return (self.cutoff(self.r[keep]) * q[keep]).sum()
        return (self.cutoff(self.r) * q).sum()


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
