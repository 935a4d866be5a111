"""Recurrent cell with an exponential input gate of e^100, normalised by its own sum.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.765,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([100.0, 0.5, 1.0]))
        self.x = nn.Parameter(torch.tensor([0.3, -0.6, 0.9]))

    def forward(self, fixed):
        if fixed:
            w = torch.softmax(self.gate + math.log(0.9) * torch.tensor([2.0, 1.0, 0.0]), 0)
            loss = ((w * self.x).sum() - 1).square() + self.x.square().sum() + self.gate.sum() / 100
        else:
            c = n = torch.zeros(())
            for t in range(3):
                i = torch.exp(self.gate[t])
                c = 0.9 * c + i * self.x[t]  # ORIGIN
                n = 0.9 * n + i
            h = c / n
            loss = (h - 1).square() + self.x.square().sum() + self.gate.sum() / 100
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
