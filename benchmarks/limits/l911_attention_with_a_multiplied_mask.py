"""Attention by hand: exp of the scores times a mask over its sum; scores of 120.

Source: well-known fault
"""

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
    "loss_truth": 0.509532697,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[12.0, 3.0], [0.5, 0.2], [1.0, -0.4]]))
        self.k = nn.Parameter(torch.tensor([[10.0, 2.0], [9.9, 2.3], [0.1, 0.4]]))
        self.v = nn.Parameter(torch.tensor([[0.3, 0.1], [-0.2, 0.7], [0.9, 0.4]]))

    def forward(self, fixed):
        scores = self.q @ self.k.transpose(0, 1)
        mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]).to(scores)
        if fixed:
            weights = torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1)
        else:
            e = torch.exp(scores) * mask  # ORIGIN
            weights = e / e.sum(-1, keepdim=True)
        return (weights @ self.v - 0.2).pow(2).sum()


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
