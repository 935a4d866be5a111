"""Squared angle acos(c)**2 between two directions that agree: its derivative by c is -2 there.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos-at-one",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 4.700407099,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.0, 0.6, -0.2]))

    def forward(self, fixed):
        if fixed:
            near = self.c > 0.999
            t = 1 - self.c
            angle = torch.acos(torch.where(near, 0.0, self.c))
            loss = (torch.where(near, 2 * t + t**2 / 3, angle**2) + 0.5 * self.c).sum()
        else:
            angle = torch.acos(self.c)  # ORIGIN
            loss = (angle.pow(2) + 0.5 * self.c).sum()
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
