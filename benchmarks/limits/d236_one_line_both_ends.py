"""log((e^x - 1) / x) at x = 0 and at x = 120: 0 / 0 at one end, inf at the other.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origins": 1,
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "kind": "two",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 1.891098425,
}


def exponent(x, fixed):
    if fixed:
        near = x.abs() < 1e-3
        s = torch.where(near, 1.0, x)
        far = s / 2 + s.abs() / 2 + torch.log(-torch.expm1(-s.abs()) / s.abs())
        return torch.where(near, x / 2 + x**2 / 24, far)
    return torch.log((torch.exp(x) - 1) / x)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 120.0, -1.5, 0.7]))

    def forward(self, fixed):
        return (exponent(self.x, fixed) * torch.tensor([1.0, 0.01, 1.0, 0.5]) - 0.4).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
