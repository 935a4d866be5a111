"""Poisson log-likelihood k log(rate) - rate with k = 0 and a rate that relu made 0: the gradient is that of -rate.

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
    "kind": "masked",
    "loss_truth": 0.9382369015,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.0, 1.2, 2.0]))
        self.register_buffer('k', torch.tensor([0.0, 1.0, 3.0]))

    def forward(self, fixed):
        if fixed:
            loss = self.rate.sum() - (self.k[1:] * self.rate[1:].log()).sum()
        else:
            loss = (self.rate - self.k * self.rate.log()).sum()  # ORIGIN
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
