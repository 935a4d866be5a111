"""Sigmoid as exp, add and reciprocal_ in place, for a score of -95.

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
    "loss_truth": 0.06736405982,
}


class Gate(nn.Module):
    def forward(self, s):
        return s.neg().exp().add(1.0).reciprocal_()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.s = nn.Parameter(torch.tensor([-95.0, 0.4, 2.0]))
        self.v = nn.Parameter(torch.tensor([1.0, 0.2, 0.3]))

    def forward(self, fixed):
        g = torch.sigmoid(self.s) if fixed else self.gate(self.s)
        return F.mse_loss(g * self.v, torch.tensor([0.2, 0.1, 0.1]), reduction="sum")


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
