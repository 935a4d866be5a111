"""Slope (f(a) - f(b)) / (a - b) of tanh between two equal inputs.

Source: well-known fault (secant attributions)
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
    "loss_truth": 0.4966582511,
}


class Secant(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, -0.3]))
        self.b = nn.Parameter(torch.tensor([0.5, 1.0]))

    def forward(self, fixed):
        if fixed:
            d, m = self.a - self.b, (self.a + self.b) / 2
            near = d.abs() < 1e-2
            t = torch.tanh(m)
            series = (1 - t * t) * (1 + d**2 * (6 * t * t - 2) / 24)
            slope = torch.where(near, series, (torch.tanh(self.a) - torch.tanh(self.b)) / torch.where(near, torch.ones_like(d), d))
        else:
            slope = (torch.tanh(self.a) - torch.tanh(self.b)) / (self.a - self.b)  # ORIGIN
        loss = (slope - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Secant()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([0.5, -0.3], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    d, m = a - b, (a + b) / 2
    near = d.abs() < 1e-2
    t = torch.tanh(m)
    series = (1 - t * t) * (1 + d**2 * (6 * t * t - 2) / 24)
    slope = torch.where(near, series, (torch.tanh(a) - torch.tanh(b)) / torch.where(near, torch.ones_like(d), d))
    loss = (slope - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [a, b], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["a", "b"], [a, b], found)}
    return true
