"""Suction curve (1 + (a h)^n)^(-m) with a h = 0 and n learned: the power at zero.

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
    "loss_truth": 0.4980703006,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
        self.n = nn.Parameter(torch.tensor(1.6))

    def forward(self, fixed):
        m = 1 - 1 / self.n
        if fixed:
            wet = self.h > 0
            s = torch.where(wet, self.h, torch.ones_like(self.h))
            p = torch.where(wet, (2.0 * s) ** self.n, torch.zeros_like(self.h))
        else:
            p = torch.exp(self.n * torch.log(2.0 * self.h))  # ORIGIN
        return ((1 + p) ** (-m) - 0.4).square().sum()


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
