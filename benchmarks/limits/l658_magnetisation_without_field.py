"""Brillouin function (2 J + 1) / (2 J) coth((2 J + 1) x / (2 J)) - 1 / (2 J) coth(x / (2 J))
without a field.

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
    "loss_truth": 0.05295289105,
}


def coth(x):
    return torch.cosh(x) / torch.sinh(x)  # ORIGIN


def brillouin(x, J):
    a, b = (2 * J + 1) / (2 * J), 1 / (2 * J)
    return a * coth(a * x) - b * coth(b * x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8, 2.0]))

    def forward(self, fixed):
        J = 1.5
        a, b = (2 * J + 1) / (2 * J), 1 / (2 * J)
        if fixed:
            near = self.x.abs() < 1e-3
            w = torch.where(near, torch.ones_like(self.x), self.x)
            m = torch.where(
                near, (a**2 - b**2) * self.x / 3, a / torch.tanh(a * w) - b / torch.tanh(b * w)
            )
        else:
            m = brillouin(self.x, J)
        return (m - torch.tensor([0.1, 0.3, 0.6])).pow(2).sum()


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
