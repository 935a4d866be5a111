"""Voltage sinh(a x) / sinh(a) along a cable and its mirror image, whose leak a is 0 in one branch:
x.

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
    "loss_truth": 0.03282661519,
}


def profile(a, x):
    return torch.sinh(a * x) / torch.sinh(a)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.0], [1.2]]))
        self.ends = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        x = torch.tensor([0.2, 0.5, 0.9])
        if fixed:

            def f(x):
                near = self.a.abs() < 1e-3
                w = torch.where(near, torch.ones_like(self.a), self.a)
                return torch.where(
                    near, x + self.a**2 * (x**3 - x) / 6, torch.sinh(w * x) / torch.sinh(w)
                )
        else:

            def f(x):
                return profile(self.a, x)

        v = self.ends[0] * f(1 - x) + self.ends[1] * f(x)
        return (v - torch.tensor([0.9, 0.6, 0.5])).pow(2).sum()


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
