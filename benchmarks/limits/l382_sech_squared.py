"""Soliton 1 / cosh(x)^2 at x = 100.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "cosh",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.398759661,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([100.0, 0.4, -1.2]))

    def forward(self, fixed):
        if fixed:
            u = 4 * torch.sigmoid(2 * self.x) * torch.sigmoid(-2 * self.x)
            loss = (u - 0.3).square().sum()
        else:
            u = 1 / torch.cosh(self.x) ** 2  # ORIGIN
            loss = (u - 0.3).square().sum()
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
