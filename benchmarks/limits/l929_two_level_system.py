"""Schottky heat capacity x^2 e^x / (1 + e^x)^2 at x = 120, without a factor of e^-x.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.3032820308,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([120.0, 2.0, 0.3]))

    def forward(self, fixed):
        if fixed:
            c = self.x**2 * torch.sigmoid(self.x) * torch.sigmoid(-self.x)
        else:
            c = self.x**2 * torch.exp(self.x) / (1 + torch.exp(self.x)) ** 2  # ORIGIN
        return (c - 0.4).square().sum()


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
