"""Slope (lgamma(x + h) - lgamma(x)) / h of a log-normaliser where h is 0.

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
    "loss_truth": 0.8613028897,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.5, 2.5, 4.0]))
        self.h = nn.Parameter(torch.tensor([0.0, 0.3, 0.0]))

    def forward(self, fixed):
        if fixed:
            near = self.h.abs() < 1e-2
            h = torch.where(near, torch.ones_like(self.h), self.h)
            flat = torch.digamma(self.x) + self.h / 2 * torch.polygamma(1, self.x) + self.h**2 / 6 * torch.polygamma(2, self.x)
            slope = torch.where(near, flat, (torch.lgamma(self.x + h) - torch.lgamma(self.x)) / h)
            loss = (slope - 0.5).square().sum()
        else:
            slope = (torch.lgamma(self.x + self.h) - torch.lgamma(self.x)) / self.h  # ORIGIN
            loss = (slope - 0.5).square().sum()
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
