"""(1 - erfcx(s)) / s of a diffusing layer whose exchange stands still.

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
    "loss_truth": 0.1927528178,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.0, 0.9]))

    def forward(self, fixed):
        s = self.s
        if fixed:
            near = s.abs() < 1e-2
            w = torch.where(near, torch.ones_like(s), s)
            q = torch.where(
                near,
                2 / math.sqrt(math.pi) - s + 4 / (3 * math.sqrt(math.pi)) * s**2,
                (1 - torch.special.erfcx(w)) / w,
            )
        else:
            q = (1 - torch.special.erfcx(s)) / s  # ORIGIN
        return (q - 0.7).pow(2).sum()


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
