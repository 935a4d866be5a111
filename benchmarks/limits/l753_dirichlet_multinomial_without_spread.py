"""Ratio of gamma functions gamma(a + n) / gamma(a) by exp(lgamma), n of 60, then its logarithm.

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
    "loss_truth": 1.924513652,
}


def rising(a, n):
    return torch.exp(torch.lgamma(a + n)) / torch.exp(torch.lgamma(a))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, 0.5]))

    def forward(self, fixed):
        n = torch.tensor([60.0, 2.0])
        if fixed:
            return (torch.lgamma(self.a + n) - torch.lgamma(self.a)).sum() / 100
        return torch.log(rising(self.a, n)).sum() / 100  # ORIGIN


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
