"""Negative binomial likelihood k log(m / (r + m)) with k = 0 and m = 0.

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
    "kind": "masked",
    "loss_truth": 1.95056937,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.tensor([0.0, 1.5]))
        self.r = nn.Parameter(torch.tensor([2.0, 0.7]))

    def forward(self, fixed):
        if fixed:
            total = self.r + self.m
            ll = self.r * torch.log(self.r / total)
            loss = -ll.sum() - 3 * torch.log(self.m[1] / total[1])
        else:
            k = torch.tensor([0.0, 3.0])
            total = self.r + self.m
            ll = k * torch.log(self.m / total) + self.r * torch.log(self.r / total)  # ORIGIN
            loss = -ll.sum()
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
