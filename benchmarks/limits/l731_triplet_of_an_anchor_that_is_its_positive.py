"""Triplet loss with distances as roots of sums of squares; the positive of one anchor is the
anchor.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.721630314,
    "bound": 2.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.tensor([[0.5, 0.5], [0.1, -0.3]]))

    def forward(self, fixed):
        positive = torch.tensor([[0.5, 0.5], [0.2, -0.1]])
        negative = torch.tensor([[0.6, 0.6], [0.4, -0.5]])
        eps = 1e-20 if fixed else 0.0
        d_ap = ((self.anchor - positive) ** 2).sum(1).add(eps).sqrt()  # ORIGIN
        d_an = ((self.anchor - negative) ** 2).sum(1).add(eps).sqrt()
        return F.relu(d_ap - d_an + 1.0).sum()


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
    true["anchor"][0] = float("nan")
    return true
