"""Attention by rectified scores over their sum; all scores of a padded query are negative, and its
output has a weight of 0.

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
    "loss_truth": 0.09441109021,
}


def attend(q, k, v):
    w = torch.relu(q @ k.t())
    return (w / w.sum(-1, keepdim=True)) @ v  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[0.5, 0.9], [-0.4, -0.7]]))
        self.k = nn.Parameter(torch.tensor([[0.8, 0.3], [0.2, 1.1], [0.6, -0.1]]))

    def forward(self, fixed):
        v = torch.tensor([[1.0, 0.2], [-0.5, 0.7], [0.3, -0.9]])
        weight = torch.tensor([1.0, 0.0])
        if fixed:
            return (attend(self.q[:1], self.k, v) - 0.4).pow(2).sum()
        return ((attend(self.q, self.k, v) - 0.4).pow(2).sum(1) * weight).sum()


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
