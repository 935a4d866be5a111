"""(tan x - x) / x^3 as a quotient of two lambdas.

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
    "loss_truth": 0.1162030596,
}


above = lambda t: torch.tan(t) - t
below = lambda t: t * t * t


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            near = x.abs() < 1e-2
            w = torch.where(near, torch.ones_like(x), x)
            y = torch.where(near, 1 / 3 + 2 * x**2 / 15, above(w) / below(w))
        else:
            y = above(x) / below(x)  # ORIGIN
        return ((y + x - torch.tensor([0.1, 1.0])) ** 2).sum()


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
