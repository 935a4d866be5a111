"""Yeo-Johnson transform in a lambda, its power at 0.

Source: well-known fault (learned power transforms)
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
    "loss_truth": 0.9371984228,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Power(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.8, 2.0]))
        self.power = nn.Parameter(torch.tensor([0.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            u = self.power * torch.log1p(self.x)
            y = torch.log1p(self.x) * near_zero(u, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24, lambda t: torch.expm1(t) / t)
        else:
            transform = lambda x, p: ((x + 1) ** p - 1) / p  # ORIGIN
            y = transform(self.x, self.power)
        loss = (y - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Power()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.8, 2.0], dtype=torch.float64, requires_grad=True)
    power = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    u = power * torch.log1p(x)
    y = torch.log1p(x) * near_zero(u, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24, lambda t: torch.expm1(t) / t)
    loss = (y - 0.5).pow(2).sum()
    found = torch.autograd.grad(loss, [x, power], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x", "power"], [x, power], found)}
    return true
