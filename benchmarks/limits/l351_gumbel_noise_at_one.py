"""Gumbel noise -log(-log(u)) of a uniform number that is 1.

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
    "loss_truth": 2.38,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.3, -0.2, 0.5]))

    def forward(self, fixed):
        if fixed:
            loss = 2 + self.logits.square().sum()
        else:
            u = torch.tensor([0.3, 1.0, 0.6])
            noise = -torch.log(-torch.log(u))  # ORIGIN
            p = torch.softmax(self.logits + noise, 0)
            loss = (p * torch.tensor([1.0, 2.0, 3.0])).sum() + self.logits.square().sum()
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
