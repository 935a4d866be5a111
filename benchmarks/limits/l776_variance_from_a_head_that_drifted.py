"""Gaussian likelihood of a regression with a variance head: log(exp(logvar)) + err^2 / exp(logvar),
a log variance of 95.

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
    "loss_truth": 15.81871995,
}


class GaussianNLL(nn.Module):
    def forward(self, mean, logvar, target):
        var = torch.exp(logvar)
        return 0.5 * (torch.log(var) + (target - mean) ** 2 / var).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.3, -1.0, 2.0]))
        self.logvar = nn.Parameter(torch.tensor([0.2, 95.0, -1.0]))
        self.loss = GaussianNLL()

    def forward(self, fixed):
        y = torch.tensor([0.5, -0.2, 1.5])
        if fixed:
            err = (y - self.mean) ** 2
            return 0.5 * (self.logvar + err * torch.exp(-self.logvar)).mean()
        return self.loss(self.mean, self.logvar, y)


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
