"""Mean moment cosh(x) / sinh(x) - 1 / x of free dipoles in a field of 0, on three lines.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1128059036,
}


class Dipoles(nn.Module):
    def __init__(self):
        super().__init__()
        self.moment = nn.Parameter(torch.tensor([1.0, 1.5, 0.4]))

    def forward(self, field, fixed):
        x = self.moment * field
        if fixed:
            near = x.abs() < 1e-2
            s = torch.where(near, 1.0, x)
            return torch.where(near, x / 3 - x**3 / 45, torch.cosh(s) / torch.sinh(s) - 1 / s)
        up = torch.cosh(x)
        down = torch.sinh(x)
        return up / down - 1 / x  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dipoles = Dipoles()

    def forward(self, fixed):
        field = torch.tensor([0.0, 0.8, -2.0])
        return (self.dipoles(field, fixed) - torch.tensor([0.2, 0.1, -0.3])).abs().pow(2).sum()


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
