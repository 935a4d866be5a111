"""Stretch energy (l - 1 - log l) / (l - 1) of springs at rest, taken by index in a loop.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": -0.2491106225,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stretch = nn.Parameter(torch.tensor([1.0, 1.4, 0.7]))

    def forward(self, fixed):
        total = torch.zeros(())
        for i in range(3):
            l = self.stretch[i]
            if fixed:
                d = l - 1
                total = total + (d / 2 if i == 0 else (d - l.log()) / d) * (i + 1)
            else:
                total = total + (l - 1 - l.log()) / (l - 1) * (i + 1)  # ORIGIN
        return total


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
