"""log(cosh x) / x^2 at x = 0: a half; in a property-like method.

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
    "loss_truth": 5.396754119,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 1.5], [-2.0, 0.3]]))
        self.a = nn.Parameter(torch.tensor(0.7))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 2e-2
            s = torch.where(near, torch.ones_like(self.x), self.x)
            r = torch.where(near, 0.5 - self.x**2 / 12, torch.log(torch.cosh(s)) / s**2)
        else:
            r = self.ratio()
        return (self.a * r).exp().sum()

    def ratio(self):
        top = self.x.cosh().log()
        return top / self.x.pow(2)  # ORIGIN


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
