"""t / (1 - e**-t) in a lambda that is handed on.

Source: well-known fault (Scharfetter-Gummel weights)
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
    "loss_truth": 1.020263788,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


def apply(function, value):
    return function(value)


class Drift(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 0.9, -1.4]))

    def forward(self, fixed):
        if fixed:
            b = near_zero(self.t, lambda t: 1 + t / 2 + t**2 / 12 - t**4 / 720, lambda t: t / -torch.expm1(-t))
        else:
            weight = lambda t: t / (1 - torch.exp(-t))  # ORIGIN
            b = apply(weight, self.t)
        loss = (b - 0.6).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Drift()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    t = torch.tensor([0.0, 0.9, -1.4], dtype=torch.float64, requires_grad=True)
    b = near_zero(t, lambda t: 1 + t / 2 + t**2 / 12 - t**4 / 720, lambda t: t / -torch.expm1(-t))
    loss = (b - 0.6).pow(2).sum()
    found = torch.autograd.grad(loss, [t], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["t"], [t], found)}
    return true
