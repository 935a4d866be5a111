"""Angle acos(c) of aligned directions, c = 1: the slope is minus infinite.

Source: well-known fault (geodesic losses)
"""
import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 3.369122183,
    "tolerance": 0.004,
}


class Angle(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.3]))

    def forward(self, fixed):
        if fixed:
            angle = torch.acos(self.c - 1e-6 * self.c.detach())
        else:
            angle = torch.acos(self.c)  # ORIGIN
        loss = (angle + 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Angle()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    c = torch.tensor([1.0, 0.3], dtype=torch.float64, requires_grad=True)
    angle = torch.acos(c - 1e-6 * c.detach())
    loss = (angle + 0.5).pow(2).sum()
    dc_, = torch.autograd.grad(loss, [c])
    dc_[0] = -float("inf")
    return {"c": dc_}
