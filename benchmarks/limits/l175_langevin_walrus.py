"""Langevin's function with its divisor in an assignment expression.

Source: well-known fault (orientation of dipoles without a field)
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
    "loss_truth": 0.2782221644,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Dipole(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, -0.7]))

    def forward(self, fixed):
        if fixed:
            order = near_zero(self.x, lambda t: t / 3 - t**3 / 45 + 2 * t**5 / 945, lambda t: 1 / torch.tanh(t) - 1 / t)
        else:
            order = 1 / torch.tanh(self.x) - (inverse := 1 / self.x)  # ORIGIN
        loss = (order - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Dipole()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.5, -0.7], dtype=torch.float64, requires_grad=True)
    order = near_zero(x, lambda t: t / 3 - t**3 / 45 + 2 * t**5 / 945, lambda t: 1 / torch.tanh(t) - 1 / t)
    loss = (order - 0.2).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
