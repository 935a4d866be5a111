"""Sum of log(d) where d is positive, 0 elsewhere, by where; one d is 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.4536791753,
}


class PositiveLog(nn.Module):
    def forward(self, d):
        return torch.where(d > 0, torch.log(d), torch.zeros_like(d))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([0.5, 0.2, 2.5]))
        self.log = PositiveLog()

    def forward(self, fixed):
        if fixed:
            return (torch.log(self.a[1] - self.b[1]) - 0.3) ** 2 + 0.18
        return (self.log(self.a - self.b) - 0.3).pow(2).sum()


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
