"""Two coefficients of a screw motion on neighbouring lines, both 0 / 0 at rest.

Source: well-known fault (two small-angle branches, both forgotten)
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
    "loss_truth": 0.9060962095,
}


class Screw(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.8]))
        self.u = nn.Parameter(torch.tensor([0.0, -1.1]))

    def forward(self, fixed):
        if fixed:
            a = torch.sinc(self.w / math.pi)
            b = torch.sinc(self.u / (2 * math.pi)) ** 2 / 2
        else:
            a = torch.sin(self.w) / self.w  # ORIGIN
            b = (1 - torch.cos(self.u)) / self.u**2  # ORIGIN
        loss = (a * torch.tensor([0.7, 0.2]) + b * torch.tensor([1.1, 0.4]) - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Screw()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([0.0, 0.8], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.0, -1.1], dtype=torch.float64, requires_grad=True)
    a = torch.sinc(w / math.pi)
    b = torch.sinc(u / (2 * math.pi)) ** 2 / 2
    loss = (a * torch.tensor([0.7, 0.2]) + b * torch.tensor([1.1, 0.4]) - 0.3).pow(2).sum()
    dw_, du_ = torch.autograd.grad(loss, [w, u])
    return {"w": dw_, "u": du_}
