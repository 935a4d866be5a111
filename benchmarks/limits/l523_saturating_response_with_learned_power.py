"""x ** p with learned powers, one below 1, at a dose of 0: the slope is infinite.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "root-at-zero",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.5856630186,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dose = nn.Parameter(torch.tensor([0.0, 0.0, 0.7]))
        self.p = nn.Parameter(torch.tensor([0.5, 2.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            return torch.stack([(self.dose[0] + 1e-12) ** 0.5 + 0 * self.p[0], self.dose[1] ** 2 + 0 * self.p[1], self.dose[2] ** self.p[2]]).sum()
        return (self.dose ** self.p).sum()  # ORIGIN


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
    true["dose"][0] = math.inf
    return true
