"""Mean normal density of an interval of length 0, (erf b - erf a) / (b - a).

Source: well-known fault (binned likelihoods)
"""
import math

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
    "loss_truth": 0.3801381761,
}


class Bin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.4, -1.0]))
        self.b = nn.Parameter(torch.tensor([0.4, 0.5]))

    def forward(self, fixed):
        if fixed:
            d, m = self.b - self.a, (self.a + self.b) / 2
            near = d.abs() < 1e-2
            series = 2 / math.sqrt(math.pi) * torch.exp(-m * m) * (1 + d**2 * (4 * m * m - 2) / 24)
            mean = torch.where(near, series, (torch.erf(self.b) - torch.erf(self.a)) / torch.where(near, torch.ones_like(d), d))
        else:
            mean = (torch.erf(self.b) - torch.erf(self.a)) / (self.b - self.a)  # ORIGIN
        loss = (mean - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Bin()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([0.4, -1.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.4, 0.5], dtype=torch.float64, requires_grad=True)
    d, m = b - a, (a + b) / 2
    near = d.abs() < 1e-2
    series = 2 / math.sqrt(math.pi) * torch.exp(-m * m) * (1 + d**2 * (4 * m * m - 2) / 24)
    mean = torch.where(near, series, (torch.erf(b) - torch.erf(a)) / torch.where(near, torch.ones_like(d), d))
    loss = (mean - 0.5).pow(2).sum()
    found = torch.autograd.grad(loss, [a, b], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["a", "b"], [a, b], found)}
    return true
