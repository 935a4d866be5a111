"""Yaw by sin(w) / w and (1 - cos(w)) / w on neighbouring lines, at w = 0.

Source: well-known fault
"""
import math

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
    "loss_truth": 2.385854014,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.v = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            dx = self.v * torch.sinc(self.w / math.pi)
            dy = self.v * self.w * torch.sinc(self.w / (2 * math.pi)) ** 2 / 2
            loss = (dx - 0.5).pow(2).sum() + (dy - 0.3).pow(2).sum()
        else:
            dx = self.v * torch.sin(self.w) / self.w  # ORIGIN
            dy = self.v * (1 - torch.cos(self.w)) / self.w
            loss = (dx - 0.5).pow(2).sum() + (dy - 0.3).pow(2).sum()
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
