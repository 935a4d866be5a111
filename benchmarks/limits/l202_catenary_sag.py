"""Sag of a catenary, (cosh x - 1) / x**2, of a taut cable.

Source: well-known fault (cables and beams)
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
    "loss_truth": 0.9756334772,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Cable(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8, -1.6]))

    def forward(self, fixed):
        if fixed:
            sag = near_zero(self.x / 2, lambda t: 1 + t**2 / 6 + t**4 / 120, lambda t: torch.sinh(t) / t) ** 2 / 2
        else:
            sag = (torch.cosh(self.x) - 1) / self.x**2  # ORIGIN
        loss = (sag * (1 + self.x) - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Cable()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.8, -1.6], dtype=torch.float64, requires_grad=True)
    sag = near_zero(x / 2, lambda t: 1 + t**2 / 6 + t**4 / 120, lambda t: torch.sinh(t) / t) ** 2 / 2
    loss = (sag * (1 + x) - 0.2).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
