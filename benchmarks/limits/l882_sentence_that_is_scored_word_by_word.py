"""Likelihood of a sentence, begun with the number 1 and multiplied word by word, which underflows.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 4.662078307,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.0, 1.0, -1.0, -4.0]))

    def forward(self, fixed):
        words = [3, 0, 3, 3, 2, 3, 3, 1, 3, 3, 3, 2, 3, 3, 3, 3, 3, 2, 3, 3, 3, 3, 3, 3]
        if fixed:
            return -F.log_softmax(self.logits, 0)[torch.tensor(words)].sum() / len(words)
        p = torch.softmax(self.logits, 0)
        likelihood = 1.0
        for word in words:
            likelihood = likelihood * p[word]
        return -torch.log(likelihood) / len(words)  # ORIGIN


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
