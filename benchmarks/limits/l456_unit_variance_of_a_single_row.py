"""Batch statistics of groups, one of which is empty; the group's weight is 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "zero-divisor",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 9.75,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 1.5, 2.5]))
        self.register_buffer('member', torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))

    def forward(self, fixed):
        if fixed:
            count = self.member.sum(1)
            centre = (self.member * self.x).sum(1) / count.clamp_min(1)
            loss = torch.where(count > 0, (centre - 2.0) ** 2, torch.zeros(2)).sum() + self.x.pow(2).sum()
        else:
            count = self.member.sum(1)
            centre = (self.member * self.x).sum(1) / count  # ORIGIN
            loss = torch.where(count > 0, (centre - 2.0) ** 2, torch.zeros(2)).sum() + self.x.pow(2).sum()
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
