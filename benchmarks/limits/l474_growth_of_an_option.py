"""Discount (1 - (1 + r)^-n) / r at a rate of 0, with n a tensor of terms.

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
    "loss_truth": 2,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.0))
        self.register_buffer('n', torch.tensor([3.0, 10.0]))

    def forward(self, fixed):
        if fixed:
            factor = self.n - self.n * (self.n + 1) / 2 * self.rate
            loss = (factor / self.n).sum()
        else:
            factor = (1 - (1 + self.rate) ** -self.n) / self.rate  # ORIGIN
            loss = (factor / self.n).sum()
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
