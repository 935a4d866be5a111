"""Entropy of a bit, -p log2 p - (1 - p) log2(1 - p), times a gate that is 0 for the certain bit.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.151949628,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.3, 0.8]))
        self.gate = nn.Parameter(torch.tensor([0.5, 0.7, 0.2]))

    def forward(self, fixed):
        p = torch.cat([self.p, torch.ones(1)])
        if fixed:
            q = p[:2]
            h = torch.cat([-(q * torch.log2(q) + (1 - q) * torch.log2(1 - q)), torch.zeros(1)])
        else:
            h = -p * torch.log2(p) - (1 - p) * torch.log2(1 - p)  # ORIGIN
        return (self.gate * h - 0.3).pow(2).sum()


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
