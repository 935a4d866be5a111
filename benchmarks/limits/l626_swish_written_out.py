"""Swish as x / (1 + exp(-x)) in a shared activation: a feature of -120.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 61.7998143,
}


class Swish(nn.Module):
    def forward(self, x):
        return x / (1 + torch.exp(-x))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = Swish()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.a.weight.copy_(torch.tensor([[1.0, 0.5], [-3.0, 1.0]]))
            self.b.weight.copy_(torch.tensor([[0.3, -0.2]]))

    def forward(self, fixed):
        x = torch.tensor([[40.0, 0.5], [0.2, -0.4]])
        act = F.silu if fixed else self.act
        y = act(self.b(act(self.a(x))))
        return (y - 1.0).pow(2).mean()


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
