"""Inverse of a rational-quadratic spline: the discriminant b^2 - 4ac of a point outside its bin is negative."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "keep the point inside its bin",
}


class RQInverse(nn.Module):
    def __init__(self, check):
        super().__init__()
        self.h, self.d0, self.d1 = (nn.Parameter(torch.tensor(v)) for v in (0.0, 0.0, 0.0))
        self.check = check

    def forward(self, y):
        h, d0, d1 = F.softplus(self.h) + 0.1, F.softplus(self.d0), F.softplus(self.d1)
        if self.check:
            y = torch.minimum(y, h)
        k = d0 + d1 - 2 * h
        a, b, c = h * (h - d0) + y * k, h * d0 - y * k, -h * y
        return 2 * c / (-b - torch.sqrt(b.square() - 4 * a * c))  # ORIGIN


class Flow(nn.Module):
    def __init__(self, check):
        super().__init__()
        self.spline, self.loc = RQInverse(check), nn.Parameter(torch.tensor(0.4))

    def forward(self, y):
        return (self.spline(y) - self.loc).square()


def build(fixed: bool = False):
    torch.manual_seed(942)
    net = Flow(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(947)
    with torch.no_grad():
        net.spline.d0.fill_(-3.0)
        net.spline.d1.fill_(-3.0)

    def step(i):
        opt.zero_grad()
        y = torch.rand(16, generator=gen) * 0.6 + 0.02
        if i == 2:
            y[9] = 40.0
        loss = net(y).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
