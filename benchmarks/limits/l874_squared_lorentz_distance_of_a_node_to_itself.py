"""Embedding on the hyperboloid: squared distances arccosh(-<x, y>)^2 of all pairs, the diagonal
included, fitted to distances in a tree.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "acosh-at-one",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.0596645595,
}


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.space = nn.Parameter(torch.tensor([[0.0, 0.75], [0.75, 0.0], [0.0, -0.75]]))

    def forward(self):
        time = torch.sqrt(1 + (self.space**2).sum(1, keepdim=True))
        return torch.cat([time, self.space], dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding()

    def forward(self, fixed):
        x = self.embedding()
        metric = torch.tensor([-1.0, 1.0, 1.0])
        inner = -(x * metric) @ x.t()
        target = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
        if fixed:
            same = torch.eye(3, dtype=torch.bool)
            near = inner - 1
            d2 = torch.where(same, 2 * near, torch.acosh(torch.where(same, 2.0, inner)) ** 2)
        else:
            d2 = torch.acosh(inner) ** 2  # ORIGIN
        return ((d2 - target - 0.1) ** 2).mean()


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
    return {name: p.grad for name, p in net.named_parameters()}
