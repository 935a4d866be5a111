"""Debye's scattering function 2 (exp(-x) + x - 1) / x^2 of a polymer coil, at x = 0.

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
    "loss_truth": 0.08335232589,
}


class Coil(nn.Module):
    def __init__(self, radii):
        super().__init__()
        self.radii = nn.Parameter(torch.tensor(radii))

    def forward(self, q):
        x = (q * self.radii).square()
        y = 2 * (torch.exp(-x) + x - 1); return y / x**2  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.coil = Coil([0.8, 1.5])
        self.scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, fixed):
        q = torch.tensor([[0.0], [1.0]])
        if fixed:
            x = (q[1] * self.coil.radii).square()
            y = torch.stack([torch.ones(2) - (0 * self.coil.radii).square() / 3, 2 * (torch.exp(-x) + x - 1) / x**2])
        else:
            y = self.coil(q)
        return (self.scale * y - torch.tensor([[1.0, 0.9], [0.6, 0.4]])).pow(2).mean()


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
