"""Bayes factor of two evidences, each the log of a sum of exponentials, on neighbouring lines.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 259.3391847,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([120.0, 119.0, 3.0]))
        self.b = nn.Parameter(torch.tensor([-140.0, -139.5]))

    def forward(self, fixed):
        if fixed:
            return torch.logsumexp(self.a, 0) - torch.logsumexp(self.b, 0)
        first = torch.exp(self.a).sum().log()  # ORIGIN
        second = torch.exp(self.b).sum().log()
        return first - second


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
