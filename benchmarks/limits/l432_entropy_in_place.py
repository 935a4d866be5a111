"""Entropy written in place of a softmax with classes that underflow to 0.

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
    "kind": "overflow",
    "loss_truth": 0.5129616586,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[200.0, 0.0, -3.0], [0.4, 0.1, -0.6]]))

    def forward(self, fixed):
        if fixed:
            loss = -(torch.softmax(self.z, 1) * torch.log_softmax(self.z, 1)).sum(1).mean()
        else:
            p = torch.softmax(self.z, 1)
            inside = p.clone()
            inside.log_().mul_(p)  # ORIGIN
            loss = -inside.sum(1).mean()
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
