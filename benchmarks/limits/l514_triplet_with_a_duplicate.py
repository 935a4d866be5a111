"""Triplet loss whose anchor is its own positive: a distance of exactly 0 by methods.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.280624847,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(3, 2)
        with torch.no_grad():
            self.emb.weight.copy_(torch.tensor([[0.2, 0.4], [1.0, -0.5], [0.0, 0.3]]))

    def gap(self, i, j):
        return self.emb(i).sub(self.emb(j).detach()).square().sum(dim=-1).sqrt()  # ORIGIN

    def forward(self, fixed):
        a, p, n = torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([1, 0])
        if fixed:
            def gap(i, j):
                return torch.linalg.vector_norm(self.emb(i) - self.emb(j).detach(), dim=-1)
            pos, neg = gap(a, p), gap(a, n)
        else:
            pos = self.gap(a, p)
            neg = self.gap(a, n)
        return (pos + 0.0 * neg).sum()


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
    true["emb.weight"][0] = math.nan
    return true
