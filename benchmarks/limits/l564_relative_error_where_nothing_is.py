"""Relative error |p - y| / |y| of targets, those of 0 dropped by an index assignment afterwards.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 3.5,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, fixed):
        y = torch.tensor([0.0, 2.0, -1.0])
        if fixed:
            return ((self.p[1:] - y[1:]).abs() / y[1:].abs()).sum()
        err = (self.p - y).abs() / y.abs()  # ORIGIN
        err = err.clone()
        err[y == 0] = 0.0
        return err.sum()


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
