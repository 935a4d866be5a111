"""Squashed Gaussian log(1 - tanh(u)^2) at u = 12, where tanh has rounded to 1.

Source: well-known fault (soft actor-critic without the epsilon)
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
    "loss_truth": -7.856649613,
}


class Squashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([12.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            correction = 2 * (math.log(2) - self.u - nn.functional.softplus(-2 * self.u))
        else:
            correction = torch.log(1 - torch.tanh(self.u) ** 2)  # ORIGIN
        loss = correction.mean()
        return loss


def build(fixed: bool = False):
    net = Squashed()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    u = torch.tensor([12.0, 0.3, -1.0], dtype=torch.float64, requires_grad=True)
    correction = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
    loss = correction.mean()
    du_, = torch.autograd.grad(loss, [u])
    return {"u": du_}
