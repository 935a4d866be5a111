"""Attention with masked_fill of -inf; a padding query sees no key, and its output is left out of
the loss.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "softmax",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.487443022,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.5, -0.2], [0.3, 0.8]]))
        self.k = nn.Parameter(torch.tensor([[0.1, 0.7], [-0.4, 0.6]]))

    def forward(self, x, mask):
        q, k = x @ self.q, x @ self.k
        scores = q @ k.transpose(-1, -2) / math.sqrt(2)
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.softmax(scores, dim=-1) @ x  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, fixed):
        x = torch.tensor([[0.4, 1.0], [1.2, -0.5], [0.0, 0.0]])
        real = torch.tensor([1, 1, 0])
        mask = real[:, None] * real[None, :]
        if fixed:
            out = self.attention(x[:2], mask[:2, :2])
        else:
            out = self.attention(x, mask)
            out = out * real[:, None]
        return out.pow(2).sum()


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
