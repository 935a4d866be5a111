"""Negative log of a sum over experts of gate times a normal density written out, targets far off; a loop over experts.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 380.5405861,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([0.2, -0.4]))
        self.mu = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.rho = nn.Parameter(torch.tensor([-0.5, 0.1]))

    def forward(self, fixed):
        y = torch.tensor([0.3, 30.0]).to(self.mu)
        g = torch.softmax(self.gate, 0)
        if fixed:
            s = nn.functional.softplus(self.rho)
            logs = -0.5 * ((y[:, None] - self.mu) / s) ** 2 - torch.log(s) - 0.5 * math.log(2 * math.pi)
            return -torch.logsumexp(logs + torch.log_softmax(self.gate, 0), 1).mean()
        density = 0.0
        for i in range(2):
            s = nn.functional.softplus(self.rho[i])
            density = density + g[i] * torch.exp(-0.5 * ((y - self.mu[i]) / s) ** 2) / (s * math.sqrt(2 * math.pi))
        return -torch.log(density).mean()  # ORIGIN


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
