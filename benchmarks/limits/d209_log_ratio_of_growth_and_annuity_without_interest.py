"""Two faults in one step: growth log(1 + g) / g of an economy that stands still;
and annuity factor r / (1 - (1 + r)^-n) at an interest of 0: 1 / n, slope (n + 1) / (2 n).
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["div", "div"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.3810421581,
}


class Growth(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([0.0, 0.4, -0.3]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.g.abs() < 1e-2, torch.ones_like(self.g), self.g)
            rate = torch.where(self.g.abs() < 1e-2, 1 - self.g / 2 + self.g**2 / 3 - self.g**3 / 4, torch.log1p(small) / small)
        else:
            rate = torch.log(1 + self.g) / self.g  # ORIGIN
        loss = (rate - 0.7).pow(2).sum()
        return loss


class Loan(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.04]))

    def forward(self, fixed):
        if fixed:
            v = 1 / (1 + self.r)
            rate = 1 / sum(v**k for k in range(1, 13))
        else:
            rate = self.r / (1 - (1 + self.r) ** -12)  # ORIGIN
        loss = (rate * 10 - 1).pow(2).sum()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Growth()
        self.second = Loan()

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
    g = torch.tensor([0.0, 0.4, -0.3], dtype=torch.float64, requires_grad=True)
    small = torch.where(g.abs() < 1e-2, torch.ones_like(g), g)
    rate = torch.where(g.abs() < 1e-2, 1 - g / 2 + g**2 / 3 - g**3 / 4, torch.log1p(small) / small)
    loss = (rate - 0.7).pow(2).sum()
    dg_, = torch.autograd.grad(loss, [g])
    return {"first.g": dg_}


def truth_second():
    r = torch.tensor([0.0, 0.04], dtype=torch.float64, requires_grad=True)
    v = 1 / (1 + r)
    rate = 1 / sum(v**k for k in range(1, 13))
    loss = (rate * 10 - 1).pow(2).sum()
    dr_, = torch.autograd.grad(loss, [r])
    return {"second.r": dr_}


def truth():
    return {**truth_first(), **truth_second()}
