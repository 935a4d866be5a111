"""Bateman equation (exp(-a t) - exp(-b t)) / (b - a) of equal rates, rates in two parameters.

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
    "loss_truth": 0.7904003927,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 0.2]))
        self.b = nn.Parameter(torch.tensor([0.5, 0.9]))
        self.t = 2.0

    def forward(self, fixed):
        if fixed:
            m = (self.a + self.b) / 2
            d = (self.b - self.a) * self.t / 2
            near = d == 0
            s = torch.where(near, 1.0, d)
            amount = self.t * torch.exp(-m * self.t) * torch.where(near, 1 + d**2 / 6, torch.sinh(s) / s)
            loss = (amount - 0.1).pow(2).sum()
        else:
            amount = torch.exp(-self.a * self.t) - torch.exp(-self.b * self.t)
            amount /= self.b - self.a  # ORIGIN
            loss = (amount - 0.1).pow(2).sum()
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
