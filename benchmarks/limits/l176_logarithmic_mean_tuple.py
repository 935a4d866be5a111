"""Logarithmic mean of two equal numbers, numerator and divisor in one tuple assignment.

Source: well-known fault (heat exchangers, entropy-stable fluxes)
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
    "loss_truth": 0.3067892794,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Exchanger(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.5, 2.0]))
        self.b = nn.Parameter(torch.tensor([1.5, 0.7]))

    def forward(self, fixed):
        if fixed:
            half = (torch.log(self.a) - torch.log(self.b)) / 2
            mean = torch.sqrt(self.a * self.b) * near_zero(half, lambda t: 1 + t**2 / 6 + t**4 / 120, lambda t: torch.sinh(t) / t)
        else:
            above, below = self.a - self.b, torch.log(self.a) - torch.log(self.b)
            mean = above / below  # ORIGIN
        loss = (mean - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Exchanger()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([1.5, 2.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.5, 0.7], dtype=torch.float64, requires_grad=True)
    half = (torch.log(a) - torch.log(b)) / 2
    mean = torch.sqrt(a * b) * near_zero(half, lambda t: 1 + t**2 / 6 + t**4 / 120, lambda t: torch.sinh(t) / t)
    loss = (mean - 1.0).pow(2).sum()
    found = torch.autograd.grad(loss, [a, b], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["a", "b"], [a, b], found)}
    return true
