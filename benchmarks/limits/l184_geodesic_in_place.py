"""Hyperbolic distance over chord, asinh(x) / x, divided in place.

Source: well-known fault (distances in hyperbolic space)
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
    "loss_truth": 7.535234885,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Hyperbolic(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.0, -2.5]))

    def forward(self, fixed):
        if fixed:
            ratio = near_zero(self.x, lambda t: 1 - t**2 / 6 + 3 * t**4 / 40, lambda t: torch.asinh(t) / t)
        else:
            ratio = torch.asinh(self.x).div_(self.x)  # ORIGIN
        loss = (ratio * (2 + self.x) - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Hyperbolic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.0, -2.5], dtype=torch.float64, requires_grad=True)
    ratio = near_zero(x, lambda t: 1 - t**2 / 6 + 3 * t**4 / 40, lambda t: torch.asinh(t) / t)
    loss = (ratio * (2 + x) - 0.5).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
