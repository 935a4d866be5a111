"""1 / log x - 1 / (x - 1) at x = 1: inf minus inf, the limit is 1/2.

Source: well-known fault (Gregory coefficients)
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1489008829,
}


class Gregory(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            d = self.x - 1
            small = torch.where(d.abs() < 3e-2, torch.ones_like(d), d)
            g = torch.where(d.abs() < 3e-2, 1 / 2 - d / 12 + d**2 / 24, 1 / torch.log1p(small) - 1 / small)
        else:
            g = 1 / torch.log(self.x) - 1 / (self.x - 1)  # ORIGIN
        loss = (g - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Gregory()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    d = x - 1
    small = torch.where(d.abs() < 3e-2, torch.ones_like(d), d)
    g = torch.where(d.abs() < 3e-2, 1 / 2 - d / 12 + d**2 / 24, 1 / torch.log1p(small) - 1 / small)
    loss = (g - 0.2).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
