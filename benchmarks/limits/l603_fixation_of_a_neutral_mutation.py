"""Kimura's fixation probability (1 - exp(-2 s)) / (1 - exp(-4 N s)) of a neutral mutation, s = 0.

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
    "loss_truth": 29.85775606,
}


class Fixation(nn.Module):
    def __init__(self, population):
        super().__init__()
        self.population = population

    def forward(self, s):
        return (1 - torch.exp(-2 * s)) / (1 - torch.exp(-4 * self.population * s))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.02, 0.0, -0.01, 0.05]))
        self.fixation = Fixation(20)

    def forward(self, fixed):
        if fixed:
            s = self.s
            near = s.abs() < 1e-5
            w = torch.where(near, torch.ones_like(s), s)
            far = torch.expm1(-2 * w) / torch.expm1(-80 * w)
            p = torch.where(near, 1 / 40 + s * (40 - 1) / 40, far)
        else:
            p = self.fixation(self.s)
        return -(torch.tensor([3.0, 2.0, 1.0, 4.0]) * torch.log(p)).sum()


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
