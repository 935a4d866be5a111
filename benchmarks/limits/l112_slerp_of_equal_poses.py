"""Slerp weights sin((1 - t) w) / sin w between equal poses, w = 0: 1 - t and t.

Source: well-known fault (spherical interpolation of identical keys)
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
    "loss_truth": 0.04252853345,
}


class Slerp(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.9]))
        self.t = nn.Parameter(torch.tensor([0.3, 0.6]))

    def forward(self, fixed):
        if fixed:
            first = (1 - self.t) * torch.sinc((1 - self.t) * self.w / math.pi) / torch.sinc(self.w / math.pi)
        else:
            first = torch.sin((1 - self.t) * self.w) / torch.sin(self.w)  # ORIGIN
        loss = (first - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Slerp()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([0.0, 0.9], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    first = (1 - t) * torch.sinc((1 - t) * w / math.pi) / torch.sinc(w / math.pi)
    loss = (first - 0.5).pow(2).sum()
    dw_, dt_ = torch.autograd.grad(loss, [w, t])
    return {"w": dw_, "t": dt_}
