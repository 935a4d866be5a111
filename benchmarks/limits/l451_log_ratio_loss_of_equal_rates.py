"""Itakura-Saito like (r - 1 - log r) / (r - 1)^2 at r = 1.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.532015064,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([1.0, 0.5, 2.5]))

    def forward(self, fixed):
        if fixed:
            d = self.r - 1
            near = d.abs() < 1e-3
            s = torch.where(near, 1.0, d)
            loss = torch.where(near, 0.5 - d / 3 + d**2 / 4, (s - torch.log1p(s)) / s**2).sum()
        else:
            d = self.r - 1
            loss = ((d - torch.log(self.r)) / d**2).sum()  # ORIGIN
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
