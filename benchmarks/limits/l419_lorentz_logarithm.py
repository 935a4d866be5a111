"""Logarithm map of the hyperboloid: acosh(z) / sqrt(z^2 - 1) at z = 1.

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
    "loss_truth": 1.970868777,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([1.0, 1.8, 3.0]))

    def forward(self, fixed):
        if fixed:
            near = self.z < 1.001
            z = torch.where(near, 2.0, self.z)
            t = self.z - 1
            scale = torch.where(near, 1 - t / 3 + 2 * t**2 / 15, torch.acosh(z) / torch.sqrt(z**2 - 1))
            loss = (scale * torch.tensor([1.0, 2.0, -1.0])).sum()
        else:
            scale = torch.acosh(self.z) / torch.sqrt(self.z**2 - 1)  # ORIGIN
            loss = (scale * torch.tensor([1.0, 2.0, -1.0])).sum()
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
