"""log1p(x) / x in a conditional expression.

Source: well-known fault (average of a discount curve at a rate of 0)
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
    "loss_truth": 2.167800103,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8, -0.4]))

    def forward(self, fixed):
        if fixed:
            mean = near_zero(self.x, lambda t: 1 - t / 2 + t**2 / 3 - t**3 / 4 + t**4 / 5, lambda t: torch.log1p(t) / t)
        else:
            mean = torch.log1p(self.x) / self.x if self.training else self.x  # ORIGIN
        loss = (mean * torch.tensor([1.0, -0.4, 0.6])).sum() ** 2
        return loss


def build(fixed: bool = False):
    net = Curve()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.8, -0.4], dtype=torch.float64, requires_grad=True)
    mean = near_zero(x, lambda t: 1 - t / 2 + t**2 / 3 - t**3 / 4 + t**4 / 5, lambda t: torch.log1p(t) / t)
    loss = (mean * torch.tensor([1.0, -0.4, 0.6])).sum() ** 2
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
