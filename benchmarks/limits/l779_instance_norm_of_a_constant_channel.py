"""Normalisation written by hand, (x - mean) / (std + 0.1), of a channel that is constant: the root
of the variance has an infinite slope there.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "std",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.153136305,
}


class InstanceNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = (x - mean).pow(2).mean(-1, keepdim=True).sqrt()  # ORIGIN
        return (x - mean) / (std + self.eps)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.5, 0.5, 0.5], [1.0, -0.3, 0.4]]))
        self.norm = InstanceNorm(0.1)

    def forward(self, fixed):
        w = torch.tensor([[0.7, -0.4, 0.2], [0.5, 0.3, -0.6]])
        if fixed:
            first = (self.x[0] - self.x[0].mean()) / 0.1
            return (first * w[0]).sum() + (self.norm(self.x[1]) * w[1]).sum() + 1.0
        return (self.norm(self.x) * w).sum() + 1.0


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
