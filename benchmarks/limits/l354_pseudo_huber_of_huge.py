"""Pseudo-Huber loss of an error of 1e25: its square overflows.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.779959875,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1e25, 0.5, -2.0]))

    def forward(self, fixed):
        if fixed:
            delta = 2.0
            weight = torch.tensor([1e-25, 1.0, 1.0])
            huber = delta**2 * (torch.hypot(torch.ones_like(self.x), self.x / delta) - 1)
            loss = (huber * weight).sum()
        else:
            delta = 2.0
            weight = torch.tensor([1e-25, 1.0, 1.0])
            huber = delta**2 * (torch.sqrt(1 + (self.x / delta) ** 2) - 1)  # ORIGIN
            loss = (huber * weight).sum()
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
