"""Distance in the Poincare ball of a point to itself, by acosh of a ratio that is 1.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "domain",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 2.145896609,
    "bound": 2.7,
}


class Ball(nn.Module):
    def forward(self, u, v):
        gap = (u - v).pow(2).sum(-1)
        room = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
        return torch.acosh(1 + 2 * gap / room)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([[0.3, 0.4], [0.1, -0.5]]))
        self.register_buffer("v", torch.tensor([[0.3, 0.4], [0.6, 0.2]]))
        self.ball = Ball()

    def forward(self, fixed):
        if fixed:
            u, v = self.u[1], self.v[1]
            gap = (u - v).norm()
            room = ((1 - u @ u) * (1 - v @ v)).sqrt()
            return 2 * torch.asinh(gap / room)
        return self.ball(self.u, self.v).sum()


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
    true["u"][0] = math.nan
    return true
