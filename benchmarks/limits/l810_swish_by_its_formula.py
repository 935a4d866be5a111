"""Swish as x / (1 + exp(-x)) in a layer, of an activation of -100.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.2838896282,
}


class Swish(nn.Module):
    def forward(self, x):
        return x / (1 + torch.exp(-x))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[-60.0, -40.0], [0.5, 0.3]]))
        self.act = Swish()

    def forward(self, fixed):
        h = self.lin(torch.tensor([1.0, 1.0]))
        out = F.silu(h) if fixed else self.act(h)
        return (out - torch.tensor([0.4, 0.2])).pow(2).sum()


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
