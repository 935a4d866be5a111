"""Density a e^(-a x) / (1 - e^(-a)) on [0, 1] at a rate of 0: uniform.

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
    "loss_truth": 1.880256822,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.0, 1.5]))
        self.x = nn.Parameter(torch.tensor([0.3, 0.8]))

    def forward(self, fixed):
        if fixed:
            near = self.a.abs() < 1e-2
            a = torch.where(near, torch.ones_like(self.a), self.a)
            head = torch.where(near, 1 + self.a / 2 + self.a**2 / 12, a / -torch.expm1(-a))
            density = head * torch.exp(-self.a * self.x)
            loss = -density.log().sum() + density.square().sum()
        else:
            density = self.a * torch.exp(-self.a * self.x) / (1 - torch.exp(-self.a))  # ORIGIN
            loss = -density.log().sum() + density.square().sum()
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
