"""Cosine similarity by hand, dot over the product of two norms; the padded token is zero and has a
weight of 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.191207117,
}


def cosine(a, b):
    dot = (a * b).sum(-1)
    return dot / (a.norm(dim=-1) * b.norm(dim=-1))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.project.weight.copy_(torch.tensor([[1.0, 0.3], [-0.2, 0.8]]))

    def forward(self, fixed):
        tokens = torch.tensor([[0.3, 0.9], [0.0, 0.0], [1.0, -0.4]])
        targets = torch.tensor([[0.1, 1.0], [0.5, 0.5], [0.9, 0.1]])
        weight = torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            kept = weight > 0
            return (1 - cosine(self.project(tokens[kept]), targets[kept])).sum() / 2
        sim = cosine(self.project(tokens), targets)
        return ((1 - sim) * weight).sum() / weight.sum()


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
