"""Student t likelihood, (nu + 1) / 2 log(1 + z^2 / nu), of an outlier whose square overflows.

Source: well-known fault
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 136.8454221,
}


class StudentNLL(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-20.0))

    def forward(self, err):
        nu = 4.0
        z = err / torch.exp(self.log_scale)
        return (0.5 * (nu + 1) * torch.log(1 + z**2 / nu) + self.log_scale).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.5, 0.2]))
        self.loss = StudentNLL()

    def forward(self, fixed):
        err = self.mean - torch.tensor([0.4, 3.0e11])
        if fixed:
            s = self.loss.log_scale
            logs = 2 * (torch.log(err.abs()) - s) - math.log(4.0)
            return (2.5 * F.softplus(logs) + s).mean()
        return self.loss(err)


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
