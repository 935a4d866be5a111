"""Logarithm of a rotation matrix that is the identity: theta / (2 sin theta) at 0.

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
    "loss_truth": 0.28,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))

    def forward(self, fixed):
        if fixed:
            target = torch.tensor([[0.0, -0.1, 0.2], [0.1, 0.0, -0.3], [-0.2, 0.3, 0.0]])
            c = (self.r.trace() - 1) / 2
            log = (0.5 + (1 - c) / 6) * (self.r - self.r.T)
            loss = (log - target).square().sum()
        else:
            target = torch.tensor([[0.0, -0.1, 0.2], [0.1, 0.0, -0.3], [-0.2, 0.3, 0.0]])
            theta = torch.acos((self.r.trace() - 1) / 2)
            log = theta / (2 * torch.sin(theta)) * (self.r - self.r.T)  # ORIGIN
            loss = (log - target).square().sum()
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
