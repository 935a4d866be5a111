"""Inverse of the left Jacobian, (1 - x sin x / (2 (1 - cos x))) / x^2 with x = 0: the limit is 1 / 12.

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
    "loss_truth": 0.2092629805,
}


def coefficient(angle):
    half = angle * torch.sin(angle) / (2 * (1 - torch.cos(angle)))  # ORIGIN
    return (1 - half) / angle.square()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([0.0, 0.9, -1.4]))
        self.shift = nn.Parameter(torch.tensor([0.5, -0.2, 1.1]))

    def forward(self, fixed):
        if fixed:
            x = self.turn
            near = x.abs() < 5e-2
            safe = torch.where(near, torch.ones_like(x), x)
            far = (1 - safe * torch.sin(safe) / (2 * (1 - torch.cos(safe)))) / safe**2
            c = torch.where(near, 1 / 12 + x**2 / 720 + x**4 / 30240, far)
        else:
            c = coefficient(self.turn)
        return (self.shift * c - 0.3).square().sum()


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
