"""Weibull hazard (t / s)^(k - 1) with k = 1.5, for a failure at time 0 that is learned.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.716227776,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 0.8]))
        self.s = nn.Parameter(torch.tensor(2.0))

    def forward(self, fixed):
        u = self.t / self.s
        h = (u + (1e-16 if fixed else 0.0)) ** 0.5  # ORIGIN
        return (h * torch.tensor([1.0, 0.5])).sum() + u.sum()


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
    true["t"][0] = float("inf")
    return true
