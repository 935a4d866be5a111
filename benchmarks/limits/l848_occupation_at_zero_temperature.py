"""Fermi occupation 1 / (1 + exp((e - mu) / T)) at a temperature of 0: a step, flat on both sides of
it.

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
    "kind": "removable",
    "loss_truth": 0.13,
}


class Fermi(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.0))
        self.mu = nn.Parameter(torch.tensor(0.4))

    def forward(self, energy):
        return 1 / (1 + torch.exp((energy - self.mu) / self.temperature))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Parameter(torch.tensor([0.1, 0.9]))
        self.fermi = Fermi()

    def forward(self, fixed):
        y = torch.tensor([0.8, 0.3])
        if fixed:
            rest = 0.0 * (self.energy.sum() + self.fermi.mu + self.fermi.temperature)
            return 0.04 + 0.09 + rest
        return (self.fermi(self.energy) - y).pow(2).sum()


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
