"""Quaternion of a rotation vector, sin(t / 2) / t: joints start unrotated.

Source: well-known fault (axis-angle to quaternion without a small-angle branch)
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
    "loss_truth": 0.22983737,
}


class Joint(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Parameter(torch.tensor([0.0, 0.7, -1.2]))
        self.gain = nn.Parameter(torch.tensor([0.8, -0.5, 1.1]))

    def forward(self, fixed):
        if fixed:
            half = torch.sinc(self.angle / (2 * math.pi)) / 2
        else:
            half = torch.sin(self.angle / 2) / self.angle  # ORIGIN
        loss = ((self.gain * half) - torch.tensor([0.3, 0.1, 0.2])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Joint()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    angle = torch.tensor([0.0, 0.7, -1.2], dtype=torch.float64, requires_grad=True)
    gain = torch.tensor([0.8, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
    half = torch.sinc(angle / (2 * math.pi)) / 2
    loss = ((gain * half) - torch.tensor([0.3, 0.1, 0.2])).pow(2).sum()
    dangle_, dgain_ = torch.autograd.grad(loss, [angle, gain])
    return {"angle": dangle_, "gain": dgain_}
