"""Angle acos(1 - h) / sqrt(2 h) of a cap of height 0.

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
    "loss_truth": 0.9422104917,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([0.0, 0.3, 1.2]))

    def forward(self, fixed):
        if fixed:
            near = self.h == 0
            h = torch.where(near, 1.0, self.h)
            ratio = torch.where(near, 1 + self.h / 12, torch.acos(1 - h) / torch.sqrt(2 * h))
            loss = (ratio - 0.5).pow(2).sum()
        else:
            ratio = torch.acos(1 - self.h) / torch.sqrt(2 * self.h)  # ORIGIN
            loss = (ratio - 0.5).pow(2).sum()
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
