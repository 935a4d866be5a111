"""A distance as torch.pow(input=..., exponent=0.5) of a squared gap that is 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "root-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 5,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))

    def forward(self, fixed):
        if fixed:
            return torch.linalg.vector_norm(self.x, dim=1).sum()
        gap = torch.sum(input=torch.mul(input=self.x, other=self.x), dim=1)
        return torch.pow(input=gap, exponent=0.5).sum()  # ORIGIN


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
    true["x"][0] = math.nan
    return true
