"""Raised-cosine pulse sinc(t) cos(pi b t) / (1 - (2 b t)^2), sampled where 2 b t = 1: pi / 4
sinc(t).

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
    "loss_truth": 0.1419080352,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor(0.25))
        self.gain = nn.Parameter(torch.tensor(1.1))

    def forward(self, fixed):
        t = torch.tensor([0.3, 1.5, 2.0, 2.5])
        if fixed:
            u = 2 * self.b * t
            near = (u - 1).abs() < 1e-4
            w = torch.where(near, torch.zeros_like(u), u)
            d = u - 1
            shape = torch.where(
                near, math.pi / 4 * (1 - d / 2), torch.cos(math.pi * w / 2) / (1 - w**2)
            )
        else:
            shape = torch.cos(math.pi * self.b * t) / (1 - (2 * self.b * t) ** 2)  # ORIGIN
        pulse = self.gain * shape * torch.tensor([0.858, -0.212, 0.4, 0.127])
        return (pulse - torch.tensor([0.8, 0.1, 0.2, 0.0])).pow(2).sum()


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
