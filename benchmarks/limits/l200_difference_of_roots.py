"""(sqrt(1 + x) - 1) / x at 0.

Source: well-known fault (numerically stable quadratics)
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
    "loss_truth": 0.05908261291,
}


class Roots(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7, 3.0]))

    def forward(self, fixed):
        if fixed:
            slope = 1 / (torch.sqrt(1 + self.x) + 1)
        else:
            slope = (torch.sqrt(1 + self.x) - 1) / self.x  # ORIGIN
        loss = (slope - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Roots()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.7, 3.0], dtype=torch.float64, requires_grad=True)
    slope = 1 / (torch.sqrt(1 + x) + 1)
    loss = (slope - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
