"""asinh(x) / x + sqrt(1 + x^2) at x = 0.

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
    "loss_truth": 14.10392609,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7, -1.5]))

    def forward(self, fixed):
        if fixed:
            near = self.x == 0
            s = torch.where(near, 1.0, self.x)
            length = torch.sqrt(1 + self.x**2) + torch.where(near, 1 - self.x**2 / 6, torch.asinh(s) / s)
            loss = (length * torch.tensor([1.0, 2.0, 3.0])).sum()
        else:
            length = torch.sqrt(1 + self.x**2) + torch.asinh(self.x) / self.x  # ORIGIN
            loss = (length * torch.tensor([1.0, 2.0, 3.0])).sum()
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
