"""Relative volatility p1 / p2 from Antoine's equation 10^(a - b / (c + T)), both pressures vanish
in the cold.

Source: well-known fault
"""

import math

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
    "loss_truth": 0.01663976087,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([7.0, 7.2]))
        self.b = nn.Parameter(torch.tensor([1200.0, 1210.0]))

    def pressure(self, i, t):
        return 10 ** (self.a[i] - self.b[i] / (230.0 + t))

    def forward(self, fixed):
        t = torch.tensor([-206.0, 20.0])
        if fixed:
            d = self.a[0] - self.a[1] - (self.b[0] - self.b[1]) / (230.0 + t)
            ratio = torch.exp(math.log(10.0) * d)
        else:
            ratio = self.pressure(0, t) / self.pressure(1, t)  # ORIGIN
        return (ratio - torch.tensor([1.5, 0.8])).pow(2).mean()


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
