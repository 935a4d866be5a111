"""Debye's integral of t / (exp(t) - 1) by the trapezoid rule, whose first node is 0.

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
    "loss_truth": 2.00403014,
}


def integrand(t):
    return t / (torch.exp(t) - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.8, 2.5]))

    def forward(self, fixed):
        if fixed:
            t = self.x[:, None] * torch.linspace(0, 1, 9)
            near = t == 0
            t = torch.where(near, 1.0, t)
            heat = torch.where(near, 1.0, t / torch.expm1(t))
            loss = (torch.trapezoid(heat, dx=0.125, dim=1) * self.x).sum()
        else:
            t = self.x[:, None] * torch.linspace(0, 1, 9)
            heat = integrand(t)
            loss = (torch.trapezoid(heat, dx=0.125, dim=1) * self.x).sum()
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
