"""Hyperbolic distance arcosh(1 + |p - q|^2 / (2 y y')) in the half-plane, of a point to itself.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.094135492,
    "bound": 1.5,
}


def half_plane(p, q):
    gap = (p - q).pow(2).sum(-1)
    return torch.acosh(1 + gap / (2 * p[..., 1] * q[..., 1]))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([[0.2, 1.0], [0.5, 2.0]]))

    def forward(self, fixed):
        q = torch.tensor([[0.2, 1.0], [0.1, 0.7]])
        if fixed:
            gap = (self.p - q).pow(2).sum(-1) + 1e-24
            u = gap / (2 * self.p[..., 1] * q[..., 1])
            return torch.log1p(u + torch.sqrt(u) * torch.sqrt(u + 2)).sum()
        return half_plane(self.p, q).sum()


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
    true["p"][0] = float("nan")
    return true
