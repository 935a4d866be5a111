"""Zero-inflated Poisson likelihood of a count of 0, log(p + (1 - p) exp(-rate)), with a gate of
-150 and a rate of 120.

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
    "loss_truth": 60.21308955,
}


class ZeroInflatedPoisson(nn.Module):
    def forward(self, gate, rate):
        p = torch.sigmoid(gate)
        return -torch.log(p + (1 - p) * torch.exp(-rate)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([-150.0, 0.4]))
        self.rate = nn.Parameter(torch.tensor([120.0, 2.0]))
        self.loss = ZeroInflatedPoisson()

    def forward(self, fixed):
        if fixed:
            a = F.logsigmoid(self.gate)
            b = F.logsigmoid(-self.gate) - self.rate
            return -torch.logaddexp(a, b).mean()
        return self.loss(self.gate, self.rate)


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
