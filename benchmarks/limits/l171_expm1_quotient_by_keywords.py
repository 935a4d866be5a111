"""expm1(x) / x by torch.div with keyword arguments.

Source: well-known fault (exponential integrators)
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
    "loss_truth": 1.115443951,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Integrator(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, -0.9]))

    def forward(self, fixed):
        if fixed:
            phi = near_zero(self.x, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
        else:
            phi = torch.div(input=torch.expm1(self.x), other=self.x)  # ORIGIN
        loss = (phi - 0.4).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Integrator()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.4, -0.9], dtype=torch.float64, requires_grad=True)
    phi = near_zero(x, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
    loss = (phi - 0.4).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
