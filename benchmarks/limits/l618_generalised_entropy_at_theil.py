"""Generalised entropy (mean((x / m)^a) - 1) / (a (a - 1)) with a learned order that starts at
Theil's index, a = 1.

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
    "kind": "removable",
    "loss_truth": 0.1377212592,
}


def generalised_entropy(x, a):
    share = x / x.mean()
    return ((share**a).mean() - 1) / (a * (a - 1))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0))
        self.income = nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 9.0]))

    def forward(self, fixed):
        if fixed:
            s = self.income / self.income.mean()
            one = (s * s.log()).mean()
            two = (s * s.log() ** 2).mean() / 2
            d = self.a - 1
            entropy = (one + d * two) * (1 - d)
        else:
            entropy = generalised_entropy(self.income, self.a)
        return (entropy - 0.2).pow(2)


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
