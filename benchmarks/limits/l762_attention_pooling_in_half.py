"""Attention pooling in float16: exp of a score of 14, divided by the sum over the items.

Source: well-known fault
"""

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
    "loss_truth": 0.2388927432,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(torch.tensor([14.0, 13.5, 2.0]))
        self.v = nn.Parameter(torch.tensor([0.5, 1.0, -0.3]))

    def forward(self, fixed):
        if fixed:
            return ((torch.softmax(self.score, 0) * self.v).sum() - 0.2) ** 2
        e = torch.exp(self.score.half())  # ORIGIN
        a = e / e.sum()
        return ((a * self.v.half()).sum().float() - 0.2) ** 2


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
