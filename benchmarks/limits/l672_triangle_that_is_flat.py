"""Area of a triangle by Heron's formula where the points lie on a line; it shall be larger.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 1.664498844,
}


def area(a, b, c):
    s = (a + b + c) / 2
    return torch.sqrt(s * (s - a) * (s - b) * (s - c))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([3.0, 1.5]))

    def forward(self, fixed):
        a, b = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])
        if fixed:
            s = (a + b + self.c) / 2
            q = s * (s - a) * (s - b) * (s - self.c)
            size = torch.sqrt(q + torch.tensor([1e-12, 0.0]))
        else:
            size = area(a, b, self.c)
        return (size - 1.2).pow(2).sum()


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
    true["c"][0] = math.inf
    return true
