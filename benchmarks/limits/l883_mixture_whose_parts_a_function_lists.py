"""Mixture of Poisson rates whose parts a function lists and adds up; a count of 300.

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
    "kind": "overflow",
    "loss_truth": 3.68534136,
}


def likelihood(k, weights, rates):
    parts = [w * torch.exp(k * torch.log(r) - r - torch.lgamma(k + 1)) for w, r in zip(weights, rates)]
    return sum(parts)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.rates = nn.Parameter(torch.tensor([3.0, 10.0]))

    def forward(self, fixed):
        k = torch.tensor([2.0, 300.0])
        weights = torch.softmax(self.mix, 0)
        if fixed:
            logs = k[:, None] * torch.log(self.rates) - self.rates - torch.lgamma(k + 1)[:, None]
            return -torch.logsumexp(logs + torch.log_softmax(self.mix, 0), 1).mean() / 100
        return -torch.log(likelihood(k, weights, self.rates)).mean() / 100  # ORIGIN


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
