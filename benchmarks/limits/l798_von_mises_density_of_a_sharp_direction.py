"""Von Mises likelihood by its density, exp(k cos) / (2 pi I0(k)), with a concentration of 120.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.1725236742,
}


def von_mises(theta, mu, kappa):
    return torch.exp(kappa * torch.cos(theta - mu)) / (2 * math.pi * torch.special.i0(kappa))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.3, 1.0]))
        self.kappa = nn.Parameter(torch.tensor([2.0, 120.0]))

    def forward(self, fixed):
        theta = torch.tensor([0.5, 1.1])
        if fixed:
            c = torch.cos(theta - self.mu)
            logs = self.kappa * (c - 1) - torch.log(2 * math.pi * torch.special.i0e(self.kappa))
            return -logs.sum()
        return -torch.log(von_mises(theta, self.mu, self.kappa)).sum()  # ORIGIN


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
