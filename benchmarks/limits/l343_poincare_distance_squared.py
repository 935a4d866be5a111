"""Squared distance in the Poincare ball of two equal points: acosh(1).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.618824002,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor([[0.1, 0.2], [0.3, -0.4]]))
        self.v = nn.Parameter(torch.tensor([[0.1, 0.2], [-0.2, 0.5]]))

    def forward(self, fixed):
        if fixed:
            gap = (self.u - self.v).square().sum(-1)
            s = 2 * gap / ((1 - self.u.square().sum(-1)) * (1 - self.v.square().sum(-1)))
            near = s < 1e-3
            safe = torch.where(near, torch.ones_like(s), s)
            loss = torch.where(near, 2 * s - s**2 / 3, torch.acosh(1 + safe) ** 2).mean()
        else:
            gap = (self.u - self.v).square().sum(-1)
            z = 1 + 2 * gap / ((1 - self.u.square().sum(-1)) * (1 - self.v.square().sum(-1)))
            loss = (torch.acosh(z) ** 2).mean()  # ORIGIN
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
