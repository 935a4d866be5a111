"""Exponential map on the sphere, cos(t) p + sin(t) / t v with t = |v| = 0.

Source: well-known fault (Riemannian optimisation from the base point)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.4148466901,
}


class Sphere(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.5, -0.3]]))

    def forward(self, fixed):
        p = torch.tensor([[0.6, 0.8]])
        if fixed:
            s = (self.v**2).sum(1, keepdim=True)
            small = torch.where(s < 1e-4, torch.ones_like(s), s)
            cos = torch.where(s < 1e-4, 1 - s / 2 + s**2 / 24, torch.cos(small.sqrt()))
            sinc = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
            moved = cos * p + sinc * self.v
        else:
            t = self.v.norm(dim=1, keepdim=True)
            moved = torch.cos(t) * p + torch.sin(t) / t * self.v  # ORIGIN
        loss = (moved - torch.tensor([0.6, 0.9])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Sphere()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    v = torch.tensor([[0.0, 0.0], [0.5, -0.3]], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([[0.6, 0.8]])
    s = (v**2).sum(1, keepdim=True)
    small = torch.where(s < 1e-4, torch.ones_like(s), s)
    cos = torch.where(s < 1e-4, 1 - s / 2 + s**2 / 24, torch.cos(small.sqrt()))
    sinc = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
    moved = cos * p + sinc * v
    loss = (moved - torch.tensor([0.6, 0.9])).pow(2).sum()
    dv_, = torch.autograd.grad(loss, [v])
    return {"v": dv_}
