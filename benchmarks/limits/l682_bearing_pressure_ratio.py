"""Pressure coefficient ((1 + 0.2 M^2)^3.5 - 1) / (0.7 M^2) of a probe in still air, M = 0: 1.

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
    "loss_truth": 0.830765322,
}


def pressure_coefficient(mach):
    ratio = (1 + 0.2 * mach**2) ** 3.5
    return (ratio - 1) / (0.7 * mach**2)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mach = nn.Parameter(torch.tensor([0.0, 0.4, 0.8]))

    def forward(self, fixed):
        if fixed:
            m2 = self.mach**2
            near = m2 < 1e-4
            u = torch.where(near, torch.ones_like(m2), m2)
            cp = torch.where(near, 1 + m2 / 4, ((1 + 0.2 * u) ** 3.5 - 1) / (0.7 * u))
        else:
            cp = pressure_coefficient(self.mach)
        return (cp * torch.tensor([1.0, 0.5, 2.0]) - 0.8).pow(2).mean()


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
