"""Mills ratio by hand, (1 - Phi(x)) / phi(x), at x = 15: 0 / 0 in float32.

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
    "kind": "overflow",
    "loss_truth": 0.5590619436,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([15.0, 0.4]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            y = torch.special.erfcx(x / math.sqrt(2)) * math.sqrt(math.pi / 2)
        else:
            tail = 0.5 * (1 - torch.erf(x / math.sqrt(2)))
            y = tail / (torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))  # ORIGIN
        return (y - 0.2).square().sum()


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
