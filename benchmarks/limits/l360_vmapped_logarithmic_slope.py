"""Slope (log a - log b) / (a - b) mapped over samples; one pair is equal.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.038668687,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([0.5, 1.4, 0.3]))

    def forward(self, fixed):
        if fixed:
            d = self.a / self.b - 1
            near = d.abs() < 1e-2
            safe = torch.where(near, torch.ones_like(d), d)
            slope = torch.where(near, 1 - d / 2 + d**2 / 3, torch.log1p(safe) / safe) / self.b
            loss = (slope - 1).square().sum()
        else:
            slope = torch.vmap(lambda a, b: (a.log() - b.log()) / (a - b))(self.a, self.b)  # ORIGIN
            loss = (slope - 1).square().sum()
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
