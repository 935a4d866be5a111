"""Bateman function (e^(-a t) - e^(-b t)) / (b - a) with equal rates: t e^(-a t).

Source: well-known fault (decay chains, absorption equal to elimination)
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
    "loss_truth": 0.04566396745,
}


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, 0.3]))
        self.b = nn.Parameter(torch.tensor([0.5, 0.9]))

    def forward(self, fixed):
        t = torch.tensor([[0.7], [2.0]])
        if fixed:
            d = self.b - self.a
            small = torch.where(d.abs() < 1e-3, torch.ones_like(d), d)
            c = torch.exp(-self.a * t) * torch.where(d.abs() < 1e-3, t - d * t**2 / 2 + d**2 * t**3 / 6, -torch.expm1(-small * t) / small)
        else:
            c = (torch.exp(-self.a * t) - torch.exp(-self.b * t)) / (self.b - self.a)  # ORIGIN
        loss = (c - 0.4).pow(2).mean()
        return loss


def build(fixed: bool = False):
    net = Chain()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.5, 0.9], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([[0.7], [2.0]])
    d = b - a
    small = torch.where(d.abs() < 1e-3, torch.ones_like(d), d)
    c = torch.exp(-a * t) * torch.where(d.abs() < 1e-3, t - d * t**2 / 2 + d**2 * t**3 / 6, -torch.expm1(-small * t) / small)
    loss = (c - 0.4).pow(2).mean()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"a": da_, "b": db_}
