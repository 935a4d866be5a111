"""Mean survival (1 - exp(-D)) / D over a beam, minus its linear part, in a function with keyword defaults.

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
    "loss_truth": 0.156223624,
}


def mean_survival(dose, alpha=1.0):
    x = alpha * dose
    return (x - 1 + torch.exp(-x)) / x**2  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.tensor([0.0, 0.4, 3.0]))
        self.alpha = nn.Parameter(torch.tensor(0.8))

    def forward(self, fixed):
        if fixed:
            x = self.alpha * self.d
            near = x.abs() < 3e-2
            s = torch.where(near, torch.ones_like(x), x)
            y = torch.where(near, 0.5 - x / 6 + x**2 / 24 - x**3 / 120, (s - 1 + torch.exp(-s)) / s**2)
        else:
            y = mean_survival(self.d, alpha=self.alpha)
        return (2 * y - 0.9).square().sum()


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
