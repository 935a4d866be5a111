"""Penalty on the squared torsion of a planar group: the angle is the arc cosine of the product of
two unit normals, which is 1.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.25,
}


def torsion(p):
    b1, b2, b3 = p[1] - p[0], p[2] - p[1], p[3] - p[2]
    n1 = torch.linalg.cross(b1, b2)
    n2 = torch.linalg.cross(b2, b3)
    c = (n1 * n2).sum() / (n1.norm() * n2.norm())
    return torch.acos(c.clamp(-1.0, 1.0))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(
            torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        )

    def forward(self, fixed):
        bond = (self.p[1] - self.p[0]).pow(2).sum()
        if fixed:
            return (bond - 0.5) ** 2
        return torsion(self.p) ** 2 + (bond - 0.5) ** 2


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
