"""Barron's general robust loss with a shape that starts at 0: log(x^2 / 2 + 1).

Source: well-known fault (adaptive robust loss)
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
    "loss_truth": 0.5946658074,
}


class Robust(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.0))
        self.m = nn.Parameter(torch.tensor(0.1))

    def forward(self, fixed):
        x = torch.tensor([0.5, -2.0, 1.3]) - self.m
        if fixed:
            logs = torch.log1p(x**2 / (2 - self.a))
            u = self.a * logs / 2
            rho = (2 - self.a) * logs / 2 * (1 + u / 2 + u**2 / 6)
        else:
            rho = (2 - self.a) / self.a * ((x**2 / (2 - self.a) + 1) ** (self.a / 2) - 1)  # ORIGIN
        loss = rho.mean()
        return loss


def build(fixed: bool = False):
    net = Robust()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    m = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.5, -2.0, 1.3]) - m
    logs = torch.log1p(x**2 / (2 - a))
    u = a * logs / 2
    rho = (2 - a) * logs / 2 * (1 + u / 2 + u**2 / 6)
    loss = rho.mean()
    da_, dm_ = torch.autograd.grad(loss, [a, m])
    return {"a": da_, "m": dm_}
