"""Efficiency tanh(m L) / (m L) of a cooling fin with m = sqrt(h P / k A), where the film
coefficient starts at 0.

Source: well-known fault
"""

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
    "loss_truth": 0.3114402356,
}


def efficiency(h, length):
    m = torch.sqrt(4.0 * h / 0.25)
    return torch.tanh(m * length) / (m * length)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([0.0, 0.2, 1.0]))

    def forward(self, fixed):
        length = torch.tensor([0.5, 0.8, 1.0])
        if fixed:
            u = 16.0 * self.h * length**2
            near = u < 1e-6
            w = torch.where(near, torch.ones_like(u), u).sqrt()
            eta = torch.where(near, 1 - u / 3, torch.tanh(w) / w)
        else:
            eta = efficiency(self.h, length)
        return ((1 + self.h) * eta - 0.5).pow(2).sum()


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
