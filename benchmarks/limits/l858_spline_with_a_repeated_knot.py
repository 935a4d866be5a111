"""Linear B-spline basis by its recursion; a knot is repeated, and the convention 0 / 0 = 0 is
written as where.

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
    "kind": "masked",
    "loss_truth": 0.46,
}


def hat(x, t, i):
    left = (x - t[i]) / (t[i + 1] - t[i])  # ORIGIN
    right = (t[i + 2] - x) / (t[i + 2] - t[i + 1])
    zero = torch.zeros_like(x)
    left = torch.where((t[i] <= x) & (x < t[i + 1]), left, zero)
    return left + torch.where((t[i + 1] <= x) & (x < t[i + 2]), right, zero)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.3, 0.7]))
        self.knots = nn.Parameter(torch.tensor([0.0, 0.0, 1.0]))

    def forward(self, fixed):
        if fixed:
            right = (self.knots[2] - self.x) / (self.knots[2] - self.knots[1])
            return (right - 0.4).pow(2).sum()
        return (hat(self.x, self.knots, 0) - 0.4).pow(2).sum()


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
