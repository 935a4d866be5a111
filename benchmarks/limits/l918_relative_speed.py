"""Kinetic energy per mass squared (sqrt(1 + p^2) - 1) / p^2 of a particle at rest, through a helper with two names.

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
    "loss_truth": 0.3659541335,
}


def gamma(momentum):
    return torch.sqrt(1 + momentum.square())


def per_square(momentum):
    energy = gamma(momentum) - 1
    return energy / momentum.square()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.7, 1.9]))

    def forward(self, fixed):
        if fixed:
            e = 1 / (1 + torch.sqrt(1 + self.p**2))
        else:
            e = per_square(momentum=self.p)
        return (e * torch.tensor([1.0, 2.0, 3.0]) - 0.5).square().sum()


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
