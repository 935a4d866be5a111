"""Brillouin's function for spin 3/2, 4/3 coth(4 x / 3) - coth(x / 3) / 3, of no field: two poles that cancel.

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
    "loss_truth": 0.3119025635,
}


def coth(x):
    return torch.cosh(x) / torch.sinh(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Parameter(torch.tensor([0.0, 1.0, -2.0]))
        self.gain = nn.Parameter(torch.tensor(1.4))

    def forward(self, fixed):
        x = self.field
        if fixed:
            near = x.abs() < 1e-2
            s = torch.where(near, torch.ones_like(x), x)
            far = 4 / 3 / torch.tanh(4 * s / 3) - 1 / 3 / torch.tanh(s / 3)
            m = torch.where(near, 5 * x / 9, far)
        else:
            m = 4 / 3 * coth(4 * x / 3) - coth(x / 3) / 3  # ORIGIN
        return (self.gain * m - torch.tensor([0.2, 0.5, -0.6])).square().sum()


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
