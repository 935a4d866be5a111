"""Boys function of order 0, erf(x) / x, for two charges at the same centre: 2 / sqrt(pi).

Source: well-known fault (quantum chemistry integrals)
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
    "loss_truth": 0.6838018577,
}


class Integral(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.6, 1.4]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            f = torch.where(self.x.abs() < 1e-2, 2 / math.sqrt(math.pi) * (1 - self.x**2 / 3 + self.x**4 / 10), torch.erf(small) / small)
        else:
            f = torch.erf(self.x) / self.x  # ORIGIN
        loss = (f - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Integral()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.6, 1.4], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    f = torch.where(x.abs() < 1e-2, 2 / math.sqrt(math.pi) * (1 - x**2 / 3 + x**4 / 10), torch.erf(small) / small)
    loss = (f - 0.5).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
