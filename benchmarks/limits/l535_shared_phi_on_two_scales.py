"""A module with (1 - exp(-x)) / x, called on two scales of the same input that holds a 0.

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
    "loss_truth": 2.05622597,
}


class Phi(nn.Module):
    def forward(self, x):
        top = 1 - torch.exp(-x)
        return top / x  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = Phi()
        self.x = nn.Parameter(torch.tensor([0.0, 0.6]))
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, fixed):
        def phi(x):
            near = x == 0
            s = torch.where(near, 1.0, x)
            return torch.where(near, 1 - x / 2, -torch.expm1(-s) / s)
        f = phi if fixed else self.phi
        a = f(self.x * self.scale)
        b = f(3 * self.x)
        return (a * b).sum() + (a - 0.2).pow(2).sum()


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
