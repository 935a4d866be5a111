"""Chi-square distance (p - q)^2 / (p + q) of a bin that is empty on both sides; for q = 0 it is p.

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
    "kind": "removable",
    "loss_truth": 0.2885714286,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.5, 0.3]))
        self.register_buffer('q', torch.tensor([0.0, 0.2, 0.7]))

    def forward(self, fixed):
        if fixed:
            p, q = self.p[1:], self.q[1:]
            loss = self.p[0] + ((p - q) ** 2 / (p + q)).sum()
        else:
            loss = ((self.p - self.q) ** 2).div(self.p + self.q).sum()  # ORIGIN
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
