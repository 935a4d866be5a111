"""Log-mean difference (a - b) / (log a - log b) of a heat exchanger in balance: a, slope 1/2 each.

Source: well-known fault (LMTD at equal differences)
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
    "loss_truth": 1.56937806,
}


class Exchanger(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.b = nn.Parameter(torch.tensor([2.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            d = torch.log(self.a / self.b)
            small = torch.where(d.abs() < 1e-2, torch.ones_like(d), d)
            lmtd = self.b * torch.where(d.abs() < 1e-2, 1 + d / 2 + d**2 / 6, torch.expm1(small) / small)
        else:
            lmtd = (self.a - self.b) / (torch.log(self.a) - torch.log(self.b))  # ORIGIN
        loss = (lmtd - 1.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Exchanger()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([2.0, 1.5], dtype=torch.float64, requires_grad=True)
    d = torch.log(a / b)
    small = torch.where(d.abs() < 1e-2, torch.ones_like(d), d)
    lmtd = b * torch.where(d.abs() < 1e-2, 1 + d / 2 + d**2 / 6, torch.expm1(small) / small)
    loss = (lmtd - 1.2).pow(2).sum()
    da_, db_ = torch.autograd.grad(loss, [a, b])
    return {"a": da_, "b": db_}
