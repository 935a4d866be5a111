"""Two faults in one step: third coefficient of the left jacobian, (t - sin t) / t^3, at t = 0: 1/6;
and exponential map on the sphere, cos(t) p + sin(t) / t v with t = |v| = 0.
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
    "loss_truth": 0.5987995968,
}


class Jacobian(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor([0.0, 1.2, -2.0]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.t.abs() < 0.3, torch.ones_like(self.t), self.t)
            c = torch.where(self.t.abs() < 0.3, 1 / 6 - self.t**2 / 120 + self.t**4 / 5040, (small - torch.sin(small)) / small**3)
        else:
            c = (self.t - torch.sin(self.t)) / self.t**3  # ORIGIN
        loss = (c - 0.4).pow(2).sum()
        return loss


class Sphere(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.5, -0.3]]))

    def forward(self, fixed):
        p = torch.tensor([[0.6, 0.8]])
        if fixed:
            s = (self.v**2).sum(1, keepdim=True)
            small = torch.where(s < 1e-4, torch.ones_like(s), s)
            cos = torch.where(s < 1e-4, 1 - s / 2 + s**2 / 24, torch.cos(small.sqrt()))
            sinc = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
            moved = cos * p + sinc * self.v
        else:
            t = self.v.norm(dim=1, keepdim=True)
            moved = torch.cos(t) * p + torch.sin(t) / t * self.v  # ORIGIN
        loss = (moved - torch.tensor([0.6, 0.9])).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Jacobian()
        self.second = Sphere()

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
    t = torch.tensor([0.0, 1.2, -2.0], dtype=torch.float64, requires_grad=True)
    small = torch.where(t.abs() < 0.3, torch.ones_like(t), t)
    c = torch.where(t.abs() < 0.3, 1 / 6 - t**2 / 120 + t**4 / 5040, (small - torch.sin(small)) / small**3)
    loss = (c - 0.4).pow(2).sum()
    dt_, = torch.autograd.grad(loss, [t])
    return {"first.t": dt_}


def truth_second():
    v = torch.tensor([[0.0, 0.0], [0.5, -0.3]], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([[0.6, 0.8]])
    s = (v**2).sum(1, keepdim=True)
    small = torch.where(s < 1e-4, torch.ones_like(s), s)
    cos = torch.where(s < 1e-4, 1 - s / 2 + s**2 / 24, torch.cos(small.sqrt()))
    sinc = torch.where(s < 1e-4, 1 - s / 6 + s**2 / 120, torch.sinc(small.sqrt() / math.pi))
    moved = cos * p + sinc * v
    loss = (moved - torch.tensor([0.6, 0.9])).pow(2).sum()
    dv_, = torch.autograd.grad(loss, [v])
    return {"second.v": dv_}


def truth():
    return {**truth_first(), **truth_second()}
