"""(1 - e**-t) / t in a loop over two parameters.

Source: well-known fault (averaged decay)
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
    "loss_truth": 0.3871975173,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 1.2]))
        self.y = nn.Parameter(torch.tensor([2.0, 0.0]))

    def forward(self, fixed):
        if fixed:
            total = torch.zeros(2)
            for t in (self.x, self.y):
                total = total + near_zero(t, lambda s: 1 - s / 2 + s**2 / 6 - s**3 / 24 + s**4 / 120, lambda s: -torch.expm1(-s) / s)
        else:
            total = torch.zeros(2)
            for t in (self.x, self.y):
                total = total + (1 - torch.exp(-t)) / t  # ORIGIN
        loss = (total - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Decay()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.5, 1.2], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    total = torch.zeros(2)
    for t in (x, y):
        total = total + near_zero(t, lambda s: 1 - s / 2 + s**2 / 6 - s**3 / 24 + s**4 / 120, lambda s: -torch.expm1(-s) / s)
    loss = (total - 1.0).pow(2).sum()
    found = torch.autograd.grad(loss, [x, y], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x", "y"], [x, y], found)}
    return true
