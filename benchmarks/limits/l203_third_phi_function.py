"""phi3, (e**x - 1 - x - x**2 / 2) / x**3, of a mode without decay.

Source: well-known fault (exponential integrators of third order)
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
    "loss_truth": 0.3335236006,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, -2.0]))

    def forward(self, fixed):
        if fixed:
            phi = near_zero(
                self.x, lambda t: 1 / 6 + t / 24 + t**2 / 120 + t**3 / 720 + t**4 / 5040,
                lambda t: (torch.exp(t) - 1 - t - t**2 / 2) / t**3,
            )
        else:
            phi = (torch.exp(self.x) - 1 - self.x - self.x**2 / 2) / self.x**3  # ORIGIN
        loss = (phi * (1 + self.x) - 0.1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Modes()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 1.5, -2.0], dtype=torch.float64, requires_grad=True)
    phi = near_zero(
        x, lambda t: 1 / 6 + t / 24 + t**2 / 120 + t**3 / 720 + t**4 / 5040,
        lambda t: (torch.exp(t) - 1 - t - t**2 / 2) / t**3,
    )
    loss = (phi * (1 + x) - 0.1).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
