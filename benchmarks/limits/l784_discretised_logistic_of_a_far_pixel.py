"""Discretised logistic likelihood of pixels, log(sigmoid(upper) - sigmoid(lower)), of a pixel far
from its mean.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 5.174255537,
}


def discretised_logistic(x, mean, log_scale):
    centred = x - mean
    inv = torch.exp(-log_scale)
    upper = torch.sigmoid(inv * (centred + 1 / 255))
    lower = torch.sigmoid(inv * (centred - 1 / 255))
    return torch.log(upper - lower)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.1, -0.9]))
        self.log_scale = nn.Parameter(torch.tensor([-2.0, -4.0]))

    def forward(self, fixed):
        x = torch.tensor([0.2, 0.9])
        if fixed:
            inv = torch.exp(-self.log_scale)
            a = inv * (x - self.mean + 1 / 255)
            b = inv * (x - self.mean - 1 / 255)
            logs = b + torch.log(torch.expm1(a - b)) - F.softplus(a) - F.softplus(b)
            return -logs.mean() / 10
        return -discretised_logistic(x, self.mean, self.log_scale).mean() / 10


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
