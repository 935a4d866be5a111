"""Censored observation log(erfc(x)) at x = 12: erfc is 0 in float32.

Source: well-known fault (Tobit regression)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 73.89786265,
}


class Tobit(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([12.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            loss = -(torch.special.log_ndtr(-self.x * math.sqrt(2)) + math.log(2)).mean()
        else:
            loss = -torch.log(torch.erfc(self.x)).mean()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Tobit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([12.0, 0.5], dtype=torch.float64, requires_grad=True)
    loss = -(torch.special.log_ndtr(-x * math.sqrt(2)) + math.log(2)).mean()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
