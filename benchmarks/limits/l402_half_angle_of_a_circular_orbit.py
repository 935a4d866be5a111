"""Kepler: beta = (1 - sqrt(1 - e^2)) / e of an orbit whose eccentricity is 0.

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
    "loss_truth": 3.120857947,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([0.0, 0.3, 0.7]))
        self.register_buffer('anomaly', torch.tensor([0.4, 1.1, 2.0]))

    def forward(self, fixed):
        if fixed:
            beta = self.e / (1 + torch.sqrt(1 - self.e**2))
            nu = self.anomaly + 2 * torch.atan(beta * torch.sin(self.anomaly) / (1 - beta * torch.cos(self.anomaly)))
            loss = (nu - 1.0).pow(2).sum()
        else:
            beta = (1 - torch.sqrt(1 - self.e**2)) / self.e  # ORIGIN
            nu = self.anomaly + 2 * torch.atan(beta * torch.sin(self.anomaly) / (1 - beta * torch.cos(self.anomaly)))
            loss = (nu - 1.0).pow(2).sum()
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
