"""Von Mises mixture with exp(k cos(x - m)) / (2 pi i0(k)): a concentration of 120 overflows both.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "i0",
    "phase": "forward",
    "cause": "i0",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.478786528,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([2.0, 120.0]))
        self.m = nn.Parameter(torch.tensor([0.5, 1.5]))

    def forward(self, fixed):
        x = torch.tensor([[0.3], [1.55], [1.2]])
        if fixed:
            pdf = torch.exp(self.k * (torch.cos(x - self.m) - 1)) / (
                2 * math.pi * torch.special.i0e(self.k)
            )
        else:
            pdf = torch.exp(self.k * torch.cos(x - self.m)) / (
                2 * math.pi * torch.i0(self.k)
            )  # ORIGIN
        return -torch.log(pdf.mean(1)).sum()


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
