"""Thin plate spline r^2 log(r^2) at a node of its own.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.54366452,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.5]]))

    def forward(self, fixed):
        if fixed:
            r2 = self.x[1].square().sum()
            loss = (0.5 * r2 * torch.log(r2) - 0.2).square() + 0.04 + self.x.sum()
        else:
            r2 = self.x.square().sum(-1)
            bend = r2 * torch.log(r2)  # ORIGIN
            loss = (bend * torch.tensor([1.0, 0.5]) - 0.2).square().sum() + self.x.sum()
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
