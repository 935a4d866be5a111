"""Unicycle model: v / w (sin(t + w dt) - sin t) and its cosine on neighbouring lines, where the
turning rate is 0 in one step.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2587078902,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([1.0, 0.8, 1.2]))
        self.w = nn.Parameter(torch.tensor([0.5, 0.0, -0.7]))

    def forward(self, fixed):
        dt = 0.5
        x, y, theta = torch.zeros(()), torch.zeros(()), torch.tensor(0.2)
        for v, w in zip(self.v, self.w):
            if fixed:
                s = torch.sinc(w * dt / (2 * math.pi))
                x = x + v * dt * s * torch.cos(theta + w * dt / 2)
                y = y + v * dt * s * torch.sin(theta + w * dt / 2)
            else:
                x = x + v / w * (torch.sin(theta + w * dt) - torch.sin(theta))  # ORIGIN
                y = y + v / w * (torch.cos(theta) - torch.cos(theta + w * dt))
            theta = theta + w * dt
        return (x - 1.0) ** 2 + (y - 0.8) ** 2


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
    return true
