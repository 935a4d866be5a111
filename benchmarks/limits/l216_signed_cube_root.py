"""A signed cube root at 0: its slope is infinite from both sides.

Source: well-known fault (colour spaces)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.957440527,
}


class Colour(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, -2.0]))

    def forward(self, fixed):
        if fixed:
            y = self.x * (self.x.abs() + 1e-12).pow(-2 / 3)
        else:
            y = torch.sign(self.x) * self.x.abs().pow(1 / 3)  # ORIGIN
        loss = (y * torch.tensor([1.0, 2.0, 0.5])).sum()
        return loss


def build(fixed: bool = False):
    net = Colour()
    opt = torch.optim.SGD(net.parameters(), lr=1e-9)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, -2.0], dtype=torch.float64, requires_grad=True)
    y = x * (x.abs() + 1e-12).pow(-2 / 3)
    loss = (y * torch.tensor([1.0, 2.0, 0.5])).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    true["x"][0] = float("inf")
    return true
