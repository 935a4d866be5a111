"""Chebyshev's U4 as sin(5 t) / sin t with t = acos x at the end of the interval, x = 1: 5, slope 40.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 1.55262016,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 0.3, -0.5]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            u = 16 * x**4 - 12 * x**2 + 1
        else:
            angle = torch.acos(x)
            u = torch.sin(5 * angle) / torch.sin(angle)  # ORIGIN
        return (u * torch.tensor([0.1, 1.0, 1.0]) - 0.2).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
