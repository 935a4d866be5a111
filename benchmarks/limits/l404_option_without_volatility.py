"""Black-Scholes price of a call in the money at volatility 0: d1 is infinite, its density 0; vega tends to 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "zero-divisor",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 19.2936491,
}


def cdf(z):
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.spot = nn.Parameter(torch.tensor([110.0, 95.0]))
        self.vol = nn.Parameter(torch.tensor([0.0, 0.3]))
        self.strike = 100.0

    def forward(self, fixed):
        if fixed:
            zero = self.vol == 0
            vol = torch.where(zero, 1.0, self.vol)
            d1 = (torch.log(self.spot / self.strike) + 0.5 * vol**2) / vol
            loss = torch.where(zero, self.spot - self.strike, self.spot * cdf(d1) - self.strike * cdf(d1 - vol)).sum()
        else:
            d1 = (torch.log(self.spot / self.strike) + 0.5 * self.vol**2) / self.vol  # ORIGIN
            d2 = d1 - self.vol
            loss = (self.spot * cdf(d1) - self.strike * cdf(d2)).sum()
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
