"""Voigt-like profile exp(x^2) erfc(x) at x = 12: inf times 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.380017362,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([12.0, 0.3, -0.5]))

    def forward(self, fixed):
        if fixed:
            w = torch.special.erfcx(self.x)
            loss = (w - 0.2).square().sum()
        else:
            w = torch.exp(self.x**2) * torch.erfc(self.x)  # ORIGIN
            loss = (w - 0.2).square().sum()
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
