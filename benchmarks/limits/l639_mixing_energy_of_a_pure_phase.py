"""Flory-Huggins energy p log p / N + (1 - p) log(1 - p) + x p (1 - p) with a volume fraction of
exactly 0: it mixes.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": -0.1679507323,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.tensor([0.0, 0.3, 0.7]))
        self.chi = nn.Parameter(torch.tensor(1.2))

    def forward(self, fixed):
        phi = self.phi
        if fixed:
            p = torch.cat([phi[:1] + 1e-12, phi[1:]])
        else:
            p = phi
        a = p * torch.log(p) / 10  # ORIGIN
        b = (1 - phi) * torch.log(1 - phi)
        return (a + b + self.chi * phi * (1 - phi)).sum()


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
    true["phi"][0] = -math.inf
    return true
