"""Gamma log-density (k - 1) log x - x of a zero, with k = 1: 0 times -inf.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.848718055,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7, 2.0]))

    def forward(self, fixed):
        if fixed:
            k = torch.tensor([1.0, 2.5, 3.0])
            x = torch.where(k == 1, torch.ones_like(self.x), self.x)
            loss = (self.x - (k - 1) * torch.log(x)).sum()
        else:
            k = torch.tensor([1.0, 2.5, 3.0])
            density = (k - 1) * torch.log(self.x) - self.x  # ORIGIN
            loss = -density.sum()
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
