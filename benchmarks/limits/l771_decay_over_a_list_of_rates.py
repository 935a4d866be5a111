"""Mean concentration (1 - exp(-k t)) / (k t) by a helper that takes the product as one name, for
the rates of a list.

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
    "loss_truth": 0.3722115794,
}


def mean_over_time(k, t):
    kt = k * t
    return (1 - torch.exp(-kt)) / kt  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.ParameterList([nn.Parameter(torch.tensor(v)) for v in (0.0, 0.5, 1.5)])

    def forward(self, fixed):
        t = torch.tensor([1.0, 2.0])
        if fixed:
            out = []
            for k in self.rates:
                x = k * t
                near = x.abs() < 1e-3
                w = torch.where(near, torch.ones_like(x), x)
                out.append(torch.where(near, 1 - x / 2 + x**2 / 6, -torch.expm1(-w) / w))
        else:
            out = [mean_over_time(k, t) for k in self.rates]
        return (torch.stack(out) - 0.7).pow(2).sum()


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
