"""Unit vector x / sqrt(sum x^2) of a gradient-like vector near 1e-30: the squares underflow.

Source: well-known fault (normalisation of vanishing vectors)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -0.4599080276,
}


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([3e-30, 4e-30, 1e-31]))

    def forward(self, fixed):
        if fixed:
            big = self.x.abs().max().detach()
            unit = (self.x / big) / ((self.x / big) ** 2).sum().sqrt()
        else:
            unit = self.x / torch.sqrt((self.x**2).sum())  # ORIGIN
        loss = (unit * torch.tensor([0.5, -1.0, 2.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Unit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-34)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([3e-30, 4e-30, 1e-31], dtype=torch.float64, requires_grad=True)
    big = x.abs().max().detach()
    unit = (x / big) / ((x / big) ** 2).sum().sqrt()
    loss = (unit * torch.tensor([0.5, -1.0, 2.0])).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
