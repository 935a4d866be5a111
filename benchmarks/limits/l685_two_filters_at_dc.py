"""Responses of a moving average, sin(n w / 2) / (n sin(w / 2)), for two lengths through one
module, at frequency 0.

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
    "loss_truth": 3.315280949,
}


class MovingAverage(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, w):
        return torch.sin(self.n * w / 2) / (self.n * torch.sin(w / 2))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.3, 1.0]))
        self.short, self.long = MovingAverage(3), MovingAverage(8)

    def forward(self, fixed):
        if fixed:

            def f(n):
                near = self.w.abs() < 1e-3
                u = torch.where(near, torch.ones_like(self.w), self.w)
                return torch.where(
                    near,
                    1 - (n**2 - 1) * self.w**2 / 24,
                    torch.sin(n * u / 2) / (n * torch.sin(u / 2)),
                )

            a, b = f(3), f(8)
        else:
            a, b = self.short(self.w), self.long(self.w)
        return ((a - b) * torch.tensor([1.0, 2.0, 1.5]) + a - 0.5).pow(2).sum()


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
