"""Ratio of Bessel functions I1(k) / (k I0(k)) without concentration.

Source: well-known fault (von Mises and Rice distributions)
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
    "loss_truth": 0.9002319999,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Mises(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.7, 3.0]))

    def forward(self, fixed):
        if fixed:
            ratio = near_zero(self.k, lambda t: 0.5 - t**2 / 16 + t**4 / 96, lambda t: torch.special.i1(t) / (t * torch.special.i0(t)))
        else:
            ratio = torch.special.i1(self.k) / (self.k * torch.special.i0(self.k))  # ORIGIN
        loss = (ratio * (1 + self.k) - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Mises()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    k = torch.tensor([0.0, 0.7, 3.0], dtype=torch.float64, requires_grad=True)
    ratio = near_zero(k, lambda t: 0.5 - t**2 / 16 + t**4 / 96, lambda t: torch.special.i1(t) / (t * torch.special.i0(t)))
    loss = (ratio * (1 + k) - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [k], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["k"], [k], found)}
    return true
