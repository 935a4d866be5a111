"""Von Mises-Fisher normaliser log(k / sinh k) at k = 0.

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
    "loss_truth": 2.00453807,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 1.5, 4.0]))

    def forward(self, fixed):
        if fixed:
            near = self.k < 1e-2
            k = torch.where(near, 1.0, self.k)
            logc = torch.where(near, -self.k**2 / 6, torch.log(k / torch.sinh(k))) - math.log(4 * math.pi)
            loss = -(logc + 0.7 * self.k).mean()
        else:
            logc = torch.log(self.k / (4 * math.pi * torch.sinh(self.k)))  # ORIGIN
            loss = -(logc + 0.7 * self.k).mean()
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
