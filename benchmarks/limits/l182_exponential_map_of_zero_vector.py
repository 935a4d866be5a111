"""Exponential map v sin|v| / |v| of a zero vector.

Source: well-known fault (optimisation on the sphere)
"""
import math

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
    "loss_truth": 0.3196218741,
}


class Sphere(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.6, -0.3]]))

    def forward(self, fixed):
        if fixed:
            point = self.v * torch.sinc(self.v.norm(dim=1, keepdim=True) / math.pi)
        else:
            length = self.v.norm(dim=1, keepdim=True)
            point = self.v * torch.sin(length) / length  # ORIGIN
        loss = (point - torch.tensor([0.2, 0.1])).pow(2).sum()
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
    v = torch.tensor([[0.0, 0.0], [0.6, -0.3]], dtype=torch.float64, requires_grad=True)
    point = v * torch.sinc(v.norm(dim=1, keepdim=True) / math.pi)
    loss = (point - torch.tensor([0.2, 0.1])).pow(2).sum()
    found = torch.autograd.grad(loss, [v], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["v"], [v], found)}
    return true
