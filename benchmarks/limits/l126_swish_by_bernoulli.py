"""Gate x / (1 - e^-x) at 0, met in both signs through a helper.

Source: well-known fault (Goldman-Hodgkin-Katz current at zero voltage)
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
    "loss_truth": 0.1899228252,
}


def ghk(x):
    return x / (1 - torch.exp(-x))  # ORIGIN


def ghk_right(x):
    small = torch.where(x.abs() < 1e-2, torch.ones_like(x), x)
    return torch.where(x.abs() < 1e-2, 1 + x / 2 + x**2 / 12, small / -torch.expm1(-small))


class Membrane(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.0, 0.6]))
        self.g = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            flux = self.g * ghk_right(self.v) - 0.4 * ghk_right(-self.v)
        else:
            flux = self.g * ghk(self.v) - 0.4 * ghk(-self.v)
        loss = (flux - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Membrane()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    v = torch.tensor([0.0, 0.6], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    flux = g * ghk_right(v) - 0.4 * ghk_right(-v)
    loss = (flux - 0.2).pow(2).sum()
    dv_, dg_ = torch.autograd.grad(loss, [v, g])
    return {"v": dv_, "g": dg_}
