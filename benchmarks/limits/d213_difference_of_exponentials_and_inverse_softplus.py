"""Two faults in one step: log(e^a - e^b) with a = 130: inf minus a finite number;
and inverse softplus log(e^y - 1) at y = 120.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["exp", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 4.819708407,
}


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([130.0, 1.0]))
        self.b = nn.Parameter(torch.tensor([129.0, -0.5]))

    def forward(self, fixed):
        if fixed:
            d = self.a + torch.log(-torch.expm1(self.b - self.a))
        else:
            d = torch.log(torch.exp(self.a) - torch.exp(self.b))  # ORIGIN
        loss = (d * torch.tensor([0.02, 1.0])).sum()
        return loss


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = nn.Parameter(torch.tensor([120.0, 0.8]))

    def forward(self, fixed):
        if fixed:
            raw = self.y + torch.log(-torch.expm1(-self.y))
        else:
            raw = torch.log(torch.exp(self.y) - 1)  # ORIGIN
        loss = (raw * torch.tensor([0.01, 1.0])).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Interval()
        self.second = Inverse()

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
    a = torch.tensor([130.0, 1.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([129.0, -0.5], dtype=torch.float64, requires_grad=True)
    d = a + torch.log(-torch.expm1(b - a))
    loss = (d * torch.tensor([0.02, 1.0])).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"first.a": da_, "first.b": db_}


def truth_second():
    y = torch.tensor([120.0, 0.8], dtype=torch.float64, requires_grad=True)
    raw = y + torch.log(-torch.expm1(-y))
    loss = (raw * torch.tensor([0.01, 1.0])).pow(2).sum()
    dy_, = torch.autograd.grad(loss, [y])
    return {"second.y": dy_}


def truth():
    return {**truth_first(), **truth_second()}
