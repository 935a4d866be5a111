"""Einstein's heat capacity x**2 e**x / (e**x - 1)**2 at x = 0.

Source: well-known fault (Debye and Einstein solids in the hot limit)
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
    "loss_truth": 1.450796318,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Solid(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.9, 2.0]))

    def forward(self, fixed):
        if fixed:
            heat = near_zero(self.x, lambda t: 1 - t**2 / 12 + t**4 / 240, lambda t: (t / 2 / torch.sinh(t / 2)) ** 2)
        else:
            heat = self.x**2 * torch.exp(self.x) / (torch.exp(self.x) - 1) ** 2  # ORIGIN
        loss = (heat * (1 + 0.5 * self.x) - 0.6).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Solid()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.9, 2.0], dtype=torch.float64, requires_grad=True)
    heat = near_zero(x, lambda t: 1 - t**2 / 12 + t**4 / 240, lambda t: (t / 2 / torch.sinh(t / 2)) ** 2)
    loss = (heat * (1 + 0.5 * x) - 0.6).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
