"""Dirichlet's kernel sin(5 x) / sin(x) at the origin.

Source: well-known fault (array factors)
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
    "loss_truth": 1.015234233,
}


class Array(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, 1.1]))

    def forward(self, fixed):
        if fixed:
            kernel = 1 + 2 * torch.cos(2 * self.x) + 2 * torch.cos(4 * self.x)
        else:
            kernel = torch.sin(5 * self.x) / torch.sin(self.x)  # ORIGIN
        loss = ((1 + self.x) * kernel / 5 - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Array()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.4, 1.1], dtype=torch.float64, requires_grad=True)
    kernel = 1 + 2 * torch.cos(2 * x) + 2 * torch.cos(4 * x)
    loss = ((1 + x) * kernel / 5 - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
