"""Stumpff function (cosh x - 1) / x^2 on a parabolic orbit, x = 0.

Source: well-known fault (universal Kepler equation)
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
    "loss_truth": 0.1924563444,
}


class Orbit(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.mu = nn.Parameter(torch.tensor([1.2, 0.7]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.x.abs() < 1e-1, torch.ones_like(self.x), self.x)
            c2 = torch.where(self.x.abs() < 1e-1, 1 / 2 + self.x**2 / 24 + self.x**4 / 720, 2 * (torch.sinh(small / 2) / small) ** 2)
        else:
            c2 = (torch.cosh(self.x) - 1) / self.x**2  # ORIGIN
        loss = (self.mu * c2 - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Orbit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor([1.2, 0.7], dtype=torch.float64, requires_grad=True)
    small = torch.where(x.abs() < 1e-1, torch.ones_like(x), x)
    c2 = torch.where(x.abs() < 1e-1, 1 / 2 + x**2 / 24 + x**4 / 720, 2 * (torch.sinh(small / 2) / small) ** 2)
    loss = (mu * c2 - 0.2).pow(2).sum()
    dx_, dmu_ = torch.autograd.grad(loss, [x, mu])
    return {"x": dx_, "mu": dmu_}
