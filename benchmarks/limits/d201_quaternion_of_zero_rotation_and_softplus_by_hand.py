"""Two faults in one step: quaternion of a rotation vector, sin(t / 2) / t: joints start unrotated;
and noise level log(1 + exp(s)) of a heteroscedastic head whose score is 120.
"""
import math

import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 1.909404593,
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


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([120.0, 0.5, -3.0]))

    def forward(self, fixed):
        if fixed:
            sigma = nn.functional.softplus(self.s)
        else:
            sigma = torch.log(1 + torch.exp(self.s))  # ORIGIN
        loss = (sigma * torch.tensor([0.01, 0.5, 1.0])).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Joint()
        self.second = Head()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    angle = torch.tensor([0.0, 0.7, -1.2], dtype=torch.float64, requires_grad=True)
    gain = torch.tensor([0.8, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
    half = torch.sinc(angle / (2 * math.pi)) / 2
    loss = ((gain * half) - torch.tensor([0.3, 0.1, 0.2])).pow(2).sum()
    dangle_, dgain_ = torch.autograd.grad(loss, [angle, gain])
    return {"first.angle": dangle_, "first.gain": dgain_}


def truth_second():
    s = torch.tensor([120.0, 0.5, -3.0], dtype=torch.float64, requires_grad=True)
    sigma = nn.functional.softplus(s)
    loss = (sigma * torch.tensor([0.01, 0.5, 1.0])).pow(2).sum()
    ds_, = torch.autograd.grad(loss, [s])
    return {"second.s": ds_}


def truth():
    return {**truth_first(), **truth_second()}
