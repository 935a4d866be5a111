"""Spherical Bessel function sin x / x^2 - cos x / x at 0: inf minus inf, the limit is x / 3.

Source: well-known fault (radial basis of order 1 at the origin)
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
    "loss_truth": 0.1096407387,
}


class Radial(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.3, 2.2]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-2, torch.ones_like(self.x), self.x)
            j = torch.where(self.x.abs() < 1e-2, self.x / 3 - self.x**3 / 30, torch.sin(small) / small**2 - torch.cos(small) / small)
        else:
            j = torch.sin(self.x) / self.x**2 - torch.cos(self.x) / self.x  # ORIGIN
        loss = (j - 0.25).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Radial()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.3, 2.2], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    j = torch.where(x.abs() < 1e-2, x / 3 - x**3 / 30, torch.sin(small) / small**2 - torch.cos(small) / small)
    loss = (j - 0.25).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
