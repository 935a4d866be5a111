"""Donsker-Varadhan bound of mutual information: mean T - log(mean exp(T')) with a critic whose
scores grew to 100.

Source: well-known fault
"""

import math

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
    "loss_truth": -14.3657565,
}


class Bound(nn.Module):
    def forward(self, joint, marginal):
        return joint.mean() - torch.log(torch.exp(marginal).mean())  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.joint = nn.Parameter(torch.tensor([80.0, 90.0, 85.0]))
        self.marginal = nn.Parameter(torch.tensor([100.0, 99.0, 98.5]))
        self.bound = Bound()

    def forward(self, fixed):
        if fixed:
            return self.joint.mean() - torch.logsumexp(self.marginal, 0) + math.log(3)
        return self.bound(self.joint, self.marginal)


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
