"""Discrete gradient (f(b) - f(a)) / (b - a) of a sigmoid, by vmap over pairs, one of them of equal
ends.

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
    "loss_truth": 0.06275439364,
}


def discrete_gradient(a, b):
    return (torch.sigmoid(b) - torch.sigmoid(a)) / (b - a)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, -1.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([1.2, -1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            h = self.b - self.a
            same = h == 0
            w = torch.where(same, torch.ones_like(h), h)
            mid = torch.sigmoid((self.a + self.b) / 2)
            g = torch.where(
                same, mid * (1 - mid), (torch.sigmoid(self.b) - torch.sigmoid(self.a)) / w
            )
        else:
            g = torch.vmap(discrete_gradient)(self.a, self.b)
        return (g * torch.tensor([1.0, 2.0, 3.0]) - 0.3).pow(2).sum()


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
