"""Two faults in one step: log partition function log sum exp(-e) of energies near -150;
and infonce -log(e^(p / t) / (e^(p / t) + e^(n / t))) at a temperature of 0.01: inf / inf.
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "ops": ["exp", "exp"],
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 120.2698925,
}


class Energies(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([-150.0, -149.0, -3.0]))

    def forward(self, fixed):
        if fixed:
            log_z = torch.logsumexp(-self.e, 0)
        else:
            log_z = torch.log(torch.exp(-self.e).sum())  # ORIGIN
        loss = log_z + 0.1 * self.e.sum()
        return loss


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.95, 0.9]))
        self.n = nn.Parameter(torch.tensor([0.94, 0.2]))

    def forward(self, fixed):
        if fixed:
            loss = nn.functional.softplus((self.n - self.p) / 0.01).mean()
        else:
            top = torch.exp(self.p / 0.01)  # ORIGIN
            loss = -torch.log(top / (top + torch.exp(self.n / 0.01))).mean()
        return loss


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Energies()
        self.second = Contrast()

    def forward(self, fixed):
        return self.first(fixed) + self.second(fixed)


def build(fixed: bool = False):
    net = Both()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth_first():
    e = torch.tensor([-150.0, -149.0, -3.0], dtype=torch.float64, requires_grad=True)
    log_z = torch.logsumexp(-e, 0)
    loss = log_z + 0.1 * e.sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"first.e": de_}


def truth_second():
    p = torch.tensor([0.95, 0.9], dtype=torch.float64, requires_grad=True)
    n = torch.tensor([0.94, 0.2], dtype=torch.float64, requires_grad=True)
    loss = nn.functional.softplus((n - p) / 0.01).mean()
    dp_, dn_ = torch.autograd.grad(loss, [p, n])
    return {"second.p": dp_, "second.n": dn_}


def truth():
    return {**truth_first(), **truth_second()}
