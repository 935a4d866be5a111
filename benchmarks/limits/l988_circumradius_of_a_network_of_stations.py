"""Circumradius a b c / (4 A) from squared sides of a triangle of ground stations in metres: the product of three is 1e42."""
import math

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.09638374577,
    "fix": "sides in units of their mean before they are multiplied",
}


class Triangulation(nn.Module):
    def __init__(self):
        super().__init__()
        self.vertices = nn.Parameter(torch.tensor([[[0.0, 0.0], [1.2e7, 1e6], [4e6, 9e6]], [[0.0, 1e3], [2e3, 0.0], [2.5e3, 3e3]]]))
        self.register_buffer("reference", torch.tensor([5e6, 2e3]))

    def squared_sides(self, v):
        return (v - v.roll(1, dims=1)).square().sum(-1).unbind(-1)

    def circumradius(self, fixed):
        if fixed:
            unit = self.reference[:, None, None]
            a2, b2, c2 = self.squared_sides(self.vertices / unit)
            area16 = 4 * a2 * b2 - (a2 + b2 - c2) ** 2
            return self.reference * torch.sqrt(a2 * b2 * c2 / area16)
        a2, b2, c2 = self.squared_sides(self.vertices)
        area16 = 4 * a2 * b2 - (a2 + b2 - c2) ** 2
        return torch.sqrt(a2 * b2 * c2 / area16)  # ORIGIN

    def forward(self, fixed):
        return torch.log(self.circumradius(fixed) / self.reference).square().sum()


def build(fixed: bool = False):
    net = Triangulation()
    opt = torch.optim.SGD(net.parameters(), lr=1.0)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(vertices, reference):
    p, q = vertices[:, 1] - vertices[:, 0], vertices[:, 2] - vertices[:, 0]
    twice_area = (p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]).abs()
    log_r = 0.5 * ((p**2).sum(1).log() + (q**2).sum(1).log() + ((p - q) ** 2).sum(1).log()) - math.log(2) - twice_area.log()
    return ((log_r - reference.log()) ** 2).sum()


def truth():
    net = Triangulation().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
