"""Mean sqrt(2) gamma((k + 1) / 2) / gamma(k / 2) of a chi distribution of 300 degrees of freedom.

Source: well-known fault
"""

import math

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
    "loss_truth": 0.00108092097,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([4.0, 300.0]))

    def forward(self, fixed):
        k = self.k
        if fixed:
            mean = math.sqrt(2) * torch.exp(torch.lgamma((k + 1) / 2) - torch.lgamma(k / 2))
        else:
            above = torch.exp(torch.lgamma((k + 1) / 2))  # ORIGIN
            below = torch.exp(torch.lgamma(k / 2))
            mean = math.sqrt(2) * above / below
        return ((mean - torch.tensor([2.0, 17.0])) / 10).pow(2).sum()


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
