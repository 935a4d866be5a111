"""A helper sinh(a x) / x for two parameters, and log(sum exp) of energies of 300 in the same line.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "two",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 7.900297248,
}


def helper(x, a, fixed):
    if fixed:
        near = x.abs() < 1e-3
        s = torch.where(near, 1.0, x)
        return torch.where(near, a + a**3 * x**2 / 6, torch.sinh(a * s) / s)
    return torch.sinh(a * x) / x  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.y = nn.Parameter(torch.tensor([-0.3, 0.0]))
        self.e = nn.Parameter(torch.tensor([300.0, 299.0]))

    def forward(self, fixed):
        if fixed:
            return (helper(self.x, 0.5, fixed) + helper(self.y, 2.0, fixed) - 1).square().sum() + 0.01 * torch.logsumexp(self.e, 0)
        return (helper(self.x, 0.5, fixed) + helper(self.y, 2.0, fixed) - 1).square().sum() + 0.01 * torch.log(sum(torch.exp(e) for e in self.e))  # ORIGIN


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
