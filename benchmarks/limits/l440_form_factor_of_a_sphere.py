"""Scattering of a sphere 3 (sin x - x cos x) / x^3 at x = 0.

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
    "loss_truth": 17.50424154,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer('q', torch.tensor([[0.0], [0.8], [1.9]]))

    def forward(self, fixed):
        if fixed:
            x = self.q * self.r
            near = x == 0
            x = torch.where(near, 1.0, x)
            amplitude = torch.where(near, 1.0, 3 * (torch.sin(x) - x * torch.cos(x)) / x.pow(3))
            loss = (amplitude * self.r**3).pow(2).mean()
        else:
            x = self.q * self.r
            amplitude = 3 * (torch.sin(x) - x * torch.cos(x)) / x.pow(3)  # ORIGIN
            loss = (amplitude * self.r**3).pow(2).mean()
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
