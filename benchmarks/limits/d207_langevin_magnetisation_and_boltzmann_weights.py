"""Two faults in one step: magnetisation coth x - 1 / x at zero field: inf minus inf, the limit is x / 3;
and boltzmann weights of energies near 300 kt: every weight is 0, 0 / 0.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["reciprocal", "div"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 1.069977698,
}


class Magnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Parameter(torch.tensor([0.0, 1.5, -0.6]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.field.abs() < 1e-2, torch.ones_like(self.field), self.field)
            m = torch.where(self.field.abs() < 1e-2, self.field / 3 - self.field**3 / 45, 1 / torch.tanh(small) - 1 / small)
        else:
            m = 1 / torch.tanh(self.field) - 1 / self.field  # ORIGIN
        loss = (m - torch.tensor([0.5, 0.2, 0.1])).pow(2).sum()
        return loss


class Boltzmann(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([300.0, 301.0, 302.5]))

    def forward(self, fixed):
        if fixed:
            w = torch.softmax(-self.e, 0)
        else:
            w = torch.exp(-self.e) / torch.exp(-self.e).sum()  # ORIGIN
        loss = (w * torch.tensor([1.0, -0.5, 2.0])).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Magnet()
        self.second = Boltzmann()

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
    field = torch.tensor([0.0, 1.5, -0.6], dtype=torch.float64, requires_grad=True)
    small = torch.where(field.abs() < 1e-2, torch.ones_like(field), field)
    m = torch.where(field.abs() < 1e-2, field / 3 - field**3 / 45, 1 / torch.tanh(small) - 1 / small)
    loss = (m - torch.tensor([0.5, 0.2, 0.1])).pow(2).sum()
    dfield_, = torch.autograd.grad(loss, [field])
    return {"first.field": dfield_}


def truth_second():
    e = torch.tensor([300.0, 301.0, 302.5], dtype=torch.float64, requires_grad=True)
    w = torch.softmax(-e, 0)
    loss = (w * torch.tensor([1.0, -0.5, 2.0])).sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"second.e": de_}


def truth():
    return {**truth_first(), **truth_second()}
