"""Two faults in one step: |x| written as sqrt(x^2): at 0 any slope up to 1 will do;
and ratio of arc and chord, asin(c) / c, of two stations at one place.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["sqrt", "div"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 3.323756528,
    "bound": 1.0,
}


class Magnitude(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, -0.7, 1.4]))

    def forward(self, fixed):
        if fixed:
            loss = (self.x.abs() * torch.tensor([1.0, 0.5, 2.0])).sum()
        else:
            loss = (torch.sqrt(self.x**2) * torch.tensor([1.0, 0.5, 2.0])).sum()  # ORIGIN
        return loss


class Arc(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([0.0, 0.5, -0.8]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.c.abs() < 1e-2, torch.full_like(self.c, 0.5), self.c)
            ratio = torch.where(self.c.abs() < 1e-2, 1 + self.c**2 / 6 + 3 * self.c**4 / 40, torch.asin(small) / small)
        else:
            ratio = torch.asin(self.c) / self.c  # ORIGIN
        loss = (ratio - 1.3).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Magnitude()
        self.second = Arc()

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
    x = torch.tensor([0.0, -0.7, 1.4], dtype=torch.float64, requires_grad=True)
    loss = (x.abs() * torch.tensor([1.0, 0.5, 2.0])).sum()
    dx_, = torch.autograd.grad(loss, [x])
    dx_[0] = float("nan")
    return {"first.x": dx_}


def truth_second():
    c = torch.tensor([0.0, 0.5, -0.8], dtype=torch.float64, requires_grad=True)
    small = torch.where(c.abs() < 1e-2, torch.full_like(c, 0.5), c)
    ratio = torch.where(c.abs() < 1e-2, 1 + c**2 / 6 + 3 * c**4 / 40, torch.asin(small) / small)
    loss = (ratio - 1.3).pow(2).sum()
    dc_, = torch.autograd.grad(loss, [c])
    return {"second.c": dc_}


def truth():
    return {**truth_first(), **truth_second()}
