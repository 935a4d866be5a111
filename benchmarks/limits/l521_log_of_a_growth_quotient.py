"""Cumulant log((exp(x) - 1) / x) of the uniform distribution as a chain, at x = 0.

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
    "loss_truth": 0.8813757729,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, -1.3, 0.8]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-3
            s = torch.where(near, 1.0, self.x)
            out = torch.where(near, self.x / 2 + self.x**2 / 24, (torch.expm1(s) / s).log())
        else:
            out = self.x.expm1().div(self.x).log()  # ORIGIN
        return (out - 0.3).pow(2).sum()


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
