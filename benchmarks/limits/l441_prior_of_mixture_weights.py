"""Dirichlet prior and its likelihood over weights made by a property, one of which underflows to 0.

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
    "loss_truth": -0.4,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([150.0, 2.0, 1.0]))
        self.register_buffer('alpha', torch.tensor([2.0, 1.5, 0.5]))

    @property
    def weights(self):
        return torch.softmax(self.logits, 0)

    def prior(self):
        return ((self.alpha - 1) * self.weights.log()).sum()  # ORIGIN

    def forward(self, fixed):
        if fixed:
            loss = -((self.alpha - 1) * torch.log_softmax(self.logits, 0)).sum() + 0.1 * torch.softmax(self.logits, 0).pow(2).sum()
        else:
            loss = -self.prior() + 0.1 * self.weights.pow(2).sum()
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
