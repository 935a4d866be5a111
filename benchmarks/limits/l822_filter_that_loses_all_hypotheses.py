"""Discrete Bayes filter: prior times exp(-energy), divided by the sum, with energies above 120 for
all hypotheses.

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
    "kind": "overflow",
    "loss_truth": 0.1507332888,
}


def update(prior, energy):
    posterior = prior * torch.exp(-energy)
    return posterior / posterior.sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.prior = nn.Parameter(torch.tensor([0.2, -0.4, 0.1]))
        self.energy = nn.Parameter(torch.tensor([121.0, 120.5, 122.0]))

    def forward(self, fixed):
        y = torch.tensor([0.2, 0.7, 0.1])
        if fixed:
            belief = torch.softmax(torch.log_softmax(self.prior, 0) - self.energy, 0)
        else:
            belief = update(torch.softmax(self.prior, 0), self.energy)
        return (belief - y).pow(2).sum()


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
