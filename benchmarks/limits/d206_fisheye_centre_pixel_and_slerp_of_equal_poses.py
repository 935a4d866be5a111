"""Two faults in one step: equidistant fisheye model atan(r) / r: the principal point has r = 0;
and slerp weights sin((1 - t) w) / sin w between equal poses, w = 0: 1 - t and t.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "div"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.5172033356,
}


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.4, 1.1]))
        self.focal = nn.Parameter(torch.tensor(1.3))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.r.abs() < 1e-2, torch.ones_like(self.r), self.r)
            scale = torch.where(self.r.abs() < 1e-2, 1 - self.r**2 / 3 + self.r**4 / 5, torch.atan(small) / small)
        else:
            scale = torch.atan(self.r) / self.r  # ORIGIN
        loss = (self.focal * scale - 0.8).pow(2).sum()
        return loss


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


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Camera()
        self.second = Slerp()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    r = torch.tensor([0.0, 0.4, 1.1], dtype=torch.float64, requires_grad=True)
    focal = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    small = torch.where(r.abs() < 1e-2, torch.ones_like(r), r)
    scale = torch.where(r.abs() < 1e-2, 1 - r**2 / 3 + r**4 / 5, torch.atan(small) / small)
    loss = (focal * scale - 0.8).pow(2).sum()
    dr_, dfocal_ = torch.autograd.grad(loss, [r, focal])
    return {"first.r": dr_, "first.focal": dfocal_}


def truth_second():
    w = torch.tensor([0.0, 0.9], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    first = (1 - t) * torch.sinc((1 - t) * w / math.pi) / torch.sinc(w / math.pi)
    loss = (first - 0.5).pow(2).sum()
    dw_, dt_ = torch.autograd.grad(loss, [w, t])
    return {"second.w": dw_, "second.t": dt_}


def truth():
    return {**truth_first(), **truth_second()}
