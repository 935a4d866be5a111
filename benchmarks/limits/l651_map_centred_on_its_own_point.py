"""Azimuthal equidistant projection, c / sin(c) with the angular distance c = acos(..), of the very
centre of the map.

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
    "loss_truth": 1.492222423,
}


def project(lat, lon):
    cos_c = torch.cos(lat) * torch.cos(lon)
    c = torch.acos(cos_c)
    k = c / torch.sin(c)  # ORIGIN
    return k * torch.cos(lat) * torch.sin(lon), k * torch.sin(lat)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lat = nn.Parameter(torch.tensor([0.0, 0.4, -0.7]))
        self.lon = nn.Parameter(torch.tensor([0.0, 0.6, 1.1]))

    def forward(self, fixed):
        if fixed:
            s2 = (torch.cos(self.lat) * torch.sin(self.lon)) ** 2 + torch.sin(self.lat) ** 2
            near = s2 < 1e-8
            s = torch.where(near, torch.ones_like(s2), s2).sqrt()
            c = torch.atan2(s, torch.cos(self.lat) * torch.cos(self.lon))
            k = torch.where(near, 1 + s2 / 6, c / s)
            x, y = k * torch.cos(self.lat) * torch.sin(self.lon), k * torch.sin(self.lat)
        else:
            x, y = project(self.lat, self.lon)
        return ((x - 0.3) ** 2 + (y - 0.1) ** 2).sum()


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
