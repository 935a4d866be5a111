"""Tsallis' q-exponential (1 + (1 - q) x)^(1 / (1 - q)) with a learned q that starts at 1, the
ordinary exponential.

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
    "loss_truth": 0.01378816126,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(1.0))
        self.beta = nn.Parameter(torch.tensor(0.8))

    def forward(self, fixed):
        x = -self.beta * torch.tensor([0.2, 0.7, 1.5])
        if fixed:
            d = 1 - self.q
            p = torch.exp(x - d * x**2 / 2)
        else:
            p = (1 + (1 - self.q) * x) ** (1 / (1 - self.q))  # ORIGIN
        return (p - torch.tensor([0.8, 0.6, 0.2])).pow(2).sum()


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
