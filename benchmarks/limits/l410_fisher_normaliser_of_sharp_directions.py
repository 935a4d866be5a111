"""Von Mises-Fisher normaliser with sinh of a concentration of 120: the sinh overflows.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sinh",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 12.17765843,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([120.0, 1.5, 4.0]))

    def normaliser(self, k):
        return torch.log(k) - math.log(4 * math.pi) - torch.log(torch.sinh(k))  # ORIGIN

    def forward(self, fixed):
        if fixed:
            logc = torch.log(2 * self.k / (4 * math.pi)) - self.k - torch.log1p(-torch.exp(-2 * self.k))
            loss = -(logc + 0.7 * self.k).mean()
        else:
            loss = -(self.normaliser(self.k) + 0.7 * self.k).mean()
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
