"""Root of a cosine schedule 0.5 (1 + cos(pi t)) with a learned time at its end, 1: |cos(pi t / 2)| has a kink.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.9238795325,
    "bound": 1.6,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([1.0, 0.25]))

    def forward(self, fixed):
        if fixed:
            alpha = torch.cos(math.pi * self.t / 2).abs()
        else:
            alpha = (0.5 * (1 + torch.cos(math.pi * self.t))).sqrt()  # ORIGIN
        return alpha.sum()


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
    true["t"][0] = math.nan
    return true
