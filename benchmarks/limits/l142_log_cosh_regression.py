"""Log-cosh loss at a residual of 200.

Source: well-known fault (log(cosh(x)) in regression)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "cosh",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 66.49043603,
}


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.tensor([200.0, 0.5, -0.3]))

    def forward(self, fixed):
        if fixed:
            loss = (self.m.abs() + nn.functional.softplus(-2 * self.m.abs()) - math.log(2)).mean()
        else:
            loss = torch.log(torch.cosh(self.m)).mean()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Regression()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    m = torch.tensor([200.0, 0.5, -0.3], dtype=torch.float64, requires_grad=True)
    loss = (m.abs() + nn.functional.softplus(-2 * m.abs()) - math.log(2)).mean()
    dm_, = torch.autograd.grad(loss, [m])
    return {"m": dm_}
