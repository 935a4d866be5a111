"""(x - log1p(x)) / x^2, the distance fallen under quadratic drag, in a method that is called twice.

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
    "loss_truth": 0.05171495453,
}


class Fall(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([0.0, 0.6]))

    def reduced(self, x):
        top = x - torch.log1p(x)
        bottom = torch.square(x)
        return torch.div(top, bottom)  # ORIGIN

    def reduced_by_series(self, x):
        near = x.abs() < 1e-3
        w = torch.where(near, torch.ones_like(x), x)
        return torch.where(near, 0.5 - x / 3 + x**2 / 4, (w - torch.log1p(w)) / w**2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fall = Fall()

    def forward(self, fixed):
        f = self.fall.reduced_by_series if fixed else self.fall.reduced
        return (f(self.fall.c) - 0.4).pow(2).sum() + (f(2 * self.fall.c) - 0.3).pow(2).sum()


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
