"""Poisson likelihood as written in a textbook, log(rate^k exp(-rate) / k!), of a count of 60.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.868067353,
}


class PoissonNLL(nn.Module):
    def forward(self, rate, k):
        factorial = torch.exp(torch.lgamma(k + 1))
        prob = rate**k * torch.exp(-rate) / factorial  # ORIGIN
        return -torch.log(prob).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_rate = nn.Parameter(torch.tensor([0.7, 3.9]))
        self.loss = PoissonNLL()

    def forward(self, fixed):
        k = torch.tensor([3.0, 60.0])
        rate = torch.exp(self.log_rate)
        if fixed:
            return (rate - k * self.log_rate + torch.lgamma(k + 1)).mean()
        return self.loss(rate, k)


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
