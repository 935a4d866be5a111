"""Ogata and Banks, erfc(a) + exp(v x / D) erfc(b): a small dispersion makes the exponential
infinite.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "mul",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.02209669957,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor(1.0))
        self.D = nn.Parameter(torch.tensor(0.01))

    def forward(self, fixed):
        x = torch.tensor([0.2, 0.8, 1.0, 1.1])
        t = 1.0
        root = 2 * torch.sqrt(self.D * t)
        a, b = (x - self.v * t) / root, (x + self.v * t) / root
        if fixed:
            second = torch.exp(self.v * x / self.D - b**2) * torch.special.erfcx(b)
        else:
            second = torch.exp(self.v * x / self.D) * torch.erfc(b)  # ORIGIN
        c = 0.5 * (torch.erfc(a) + second)
        return (c - torch.tensor([1.0, 0.8, 0.5, 0.2])).pow(2).sum()


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
