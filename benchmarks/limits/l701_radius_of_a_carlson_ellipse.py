"""Carlson's R_C(x, y) = arccos(sqrt(x / y)) / sqrt(y - x) of an ellipse whose half axes are equal:
1 / sqrt(x).

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
    "loss_truth": 0.06101536727,
}


def carlson_rc(x, y):
    return torch.acos(torch.sqrt(x / y)) / torch.sqrt(y - x)  # ORIGIN


def carlson_series(x, y):
    s = (y - x) / x
    return (1 - s / 3 + s**2 / 5) / torch.sqrt(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.y = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            r = torch.stack(
                [carlson_series(self.x[0], self.y[0]), carlson_rc(self.x[1], self.y[1])]
            )
        else:
            r = carlson_rc(self.x, self.y)
        return (r - torch.tensor([0.8, 1.0])).pow(2).sum()


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
