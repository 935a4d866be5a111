"""Fidelity (sum sqrt(p q))^2 with an empty class whose logit is masked with -inf.

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
    "kind": "masked",
    "loss_truth": 0.2689078957,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, 1.0, -0.2]))
        self.register_buffer('q', torch.tensor([0.5, 0.3, 0.2]))
        self.register_buffer('off', torch.tensor([False, False, True]))

    def forward(self, fixed):
        if fixed:
            p = torch.softmax(self.a[:2], 0)
            loss = 1 - (p * self.q[:2]).sqrt().sum().square()
        else:
            p = torch.softmax(self.a.masked_fill(self.off, -math.inf), 0)
            loss = 1 - (p * self.q).sqrt().sum().square()  # ORIGIN
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
