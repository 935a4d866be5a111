"""Rapidity 0.5 log((1 + v) / (1 - v)) over the velocity, for a particle at rest.

Source: well-known fault
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
    "loss_truth": 0.468911904,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.5, 0.0, -0.3]))

    def forward(self, fixed):
        v = self.v
        if fixed:
            near = v.abs() < 1e-3
            w = torch.where(near, torch.full_like(v, 0.5), v)
            ratio = torch.where(near, 1 + v**2 / 3, torch.atanh(w) / w)
        else:
            rapidity = 0.5 * torch.log((1 + v) / (1 - v))
            ratio = rapidity / v  # ORIGIN
        return (ratio * (1 + v) - 1.2).pow(2).sum()


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
