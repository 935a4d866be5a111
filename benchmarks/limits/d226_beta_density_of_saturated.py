"""Beta log-density of sigmoid(u) at u = -120 and 40: both logarithms reach 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "origins": 2,
    "loss_truth": 1.34948154,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([-120.0, 0.5, 40.0]))
        self.a, self.b = 2.0, 3.0

    def forward(self, fixed):
        if fixed:
            f = torch.nn.functional.logsigmoid
            loss = -((self.a - 1) * f(self.u) + (self.b - 1) * f(-self.u)).mean() / 50
        else:
            x = torch.sigmoid(self.u)
            left = (self.a - 1) * torch.log(x)  # ORIGIN
            right = (self.b - 1) * torch.log(1 - x)  # ORIGIN
            loss = -(left + right).mean() / 50
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
