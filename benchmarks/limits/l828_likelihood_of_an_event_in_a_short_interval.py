"""Interval-censored likelihood, log(1 - exp(-rate dt)), of a rate so low that 1 - exp is 0.

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
    "loss_truth": 10.55405403,
}


class IntervalLikelihood(nn.Module):
    def forward(self, rate, dt):
        return torch.log(1 - torch.exp(-rate * dt))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_rate = nn.Parameter(torch.tensor([-20.0, 0.3]))
        self.likelihood = IntervalLikelihood()

    def forward(self, fixed):
        rate = torch.exp(self.log_rate)
        dt = torch.tensor([0.5, 0.8])
        if fixed:
            return -torch.log(-torch.expm1(-rate * dt)).mean()
        return -self.likelihood(rate, dt).mean()


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
