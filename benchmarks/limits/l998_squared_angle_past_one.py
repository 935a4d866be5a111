"""Squared geodesic distance acos(<u, v>)^2 on the sphere: a step has left the unit vectors a little
too long, and a pair of the same direction has a cosine over 1.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "forward",
    "cause": "inverse-function-domain",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.6168508,
}


class Sphere(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([[1.000002, 0.0], [1.0, 0.0]]))
        self.v = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def forward(self, fixed):
        cosine = (self.u * self.v).sum(1)
        if fixed:
            e = 1 - cosine
            near = e < 1e-3
            away = torch.where(near, torch.zeros_like(e), cosine)
            square = torch.where(near, 2 * e + e**2 / 3, torch.acos(away) ** 2)
        else:
            square = torch.acos(cosine) ** 2  # ORIGIN
        return (torch.tensor([0.5, 0.25]) * square).sum()


def build(fixed: bool = False):
    net = Sphere()
    opt = torch.optim.SGD(net.parameters(), lr=1e-9)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(p):
    """The series of the squared angle at the pair of one direction, to its second term."""
    e = 1 - p["u"][0, 0]
    return 0.5 * (2 * e + e**2 / 3) + 0.25 * torch.acos(p["u"][1, 1]) ** 2


def truth():
    p = {n: q.detach().double().requires_grad_() for n, q in build()[0].named_parameters()}
    loss = exact(p)
    given = torch.autograd.grad(loss, list(p.values()))
    return dict(zip(p, given, strict=True))
