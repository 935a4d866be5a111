"""Divided difference (e^a - e^b) / (a - b) of degenerate levels: e^a, slope e^a / 2 each.

Source: well-known fault (Duhamel formula with equal eigenvalues)
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
    "loss_truth": 0.2887298486,
}


class Levels(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, 1.0]))
        self.b = nn.Parameter(torch.tensor([0.3, -0.5]))

    def forward(self, fixed):
        if fixed:
            d = self.a - self.b
            small = torch.where(d.abs() < 1e-2, torch.ones_like(d), d)
            dd = torch.exp(self.b) * torch.where(d.abs() < 1e-2, 1 + d / 2 + d**2 / 6, torch.expm1(small) / small)
        else:
            dd = (torch.exp(self.a) - torch.exp(self.b)) / (self.a - self.b)  # ORIGIN
        loss = (dd - 1.0).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Levels()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([0.3, 1.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.3, -0.5], dtype=torch.float64, requires_grad=True)
    d = a - b
    small = torch.where(d.abs() < 1e-2, torch.ones_like(d), d)
    dd = torch.exp(b) * torch.where(d.abs() < 1e-2, 1 + d / 2 + d**2 / 6, torch.expm1(small) / small)
    loss = (dd - 1.0).pow(2).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"a": da_, "b": db_}
