"""Attention of one query under vmap, all keys of which are masked; its output is weighted by 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "_softmax",
    "phase": "forward",
    "cause": "masked-row",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 2.795081338,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.7, -0.4]]))
        self.register_buffer('mask', torch.tensor([[True, True, True], [False, True, False]]))
        self.register_buffer('valid', torch.tensor([0.0, 1.0]))

    def forward(self, fixed):
        if fixed:
            scores = self.q.masked_fill(self.mask, -1e9)
            out = (torch.softmax(scores, 1) * torch.tensor([1.0, 2.0, 3.0])).sum(1)
            loss = (out * self.valid).sum() + self.q.pow(2).sum()
        else:
            scores = self.q.masked_fill(self.mask, -math.inf)
            out = torch.vmap(lambda s: (torch.softmax(s, 0) * torch.tensor([1.0, 2.0, 3.0])).sum())(scores)  # ORIGIN
            loss = (out * self.valid).sum() + self.q.pow(2).sum()
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
