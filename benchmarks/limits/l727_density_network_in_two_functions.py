"""Mixture density network: one function gives the normal densities, another weighs them and takes
the logarithm.

Source: well-known fault
"""

import math

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
    "loss_truth": 47.20703125,
}


def gaussian(y, mu, sigma):
    d = (y - mu) / sigma
    return torch.exp(-0.5 * d * d) / (sigma * math.sqrt(2 * math.pi))


def mdn_loss(pi, mu, sigma, y):
    p = gaussian(y.expand_as(mu), mu, sigma)
    total = (pi * p).sum(dim=1)
    return -torch.log(total).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.2, -0.1], [0.5, 0.3]]))
        self.mu = nn.Parameter(torch.tensor([[0.0, 1.0], [0.5, -1.0]]))
        self.log_sigma = nn.Parameter(torch.tensor([[-1.5, -1.0], [0.1, 0.0]]))

    def forward(self, fixed):
        y = torch.tensor([[6.0], [0.2]])
        sigma = torch.exp(self.log_sigma)
        if fixed:
            d = (y - self.mu) / sigma
            logp = -0.5 * d * d - self.log_sigma - 0.5 * math.log(2 * math.pi)
            return -torch.logsumexp(torch.log_softmax(self.logits, 1) + logp, 1).mean()
        return mdn_loss(torch.softmax(self.logits, 1), self.mu, sigma, y)


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
