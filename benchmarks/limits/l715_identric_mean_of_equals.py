"""Identric mean exp(-1 + (b log b - a log a) / (b - a)) of two equal prices.

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
    "loss_truth": 0.347068169,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, 1.0]))
        self.b = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, fixed):
        a, b = self.a, self.b
        if fixed:
            m, d = (a + b) / 2, (b - a) / (a + b)
            near = d.abs() < 1e-3
            gap = torch.where(near, torch.ones_like(a), b - a)
            whole = -1 + (torch.xlogy(b, b) - torch.xlogy(a, a)) / gap
            mean = torch.where(near, m * (1 - d**2 / 6), torch.exp(whole))
        else:
            numerator = b * b.log() - a * a.log()
            mean = torch.exp(numerator / (b - a) - 1)  # ORIGIN
        return ((mean - torch.tensor([1.5, 1.6])) ** 2).sum()


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
