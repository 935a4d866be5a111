"""Plackett-Luce likelihood of a ranking, the product of exp(s_i) / sum of exp(s_j) of those behind,
with scores of 100.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.997915959,
}


def list_mle(scores):
    e = torch.exp(scores)
    rest = torch.flip(torch.cumsum(torch.flip(e, [0]), 0), [0])
    return -torch.log(e / rest).sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([100.0, 98.5, 101.0, 97.0]))

    def forward(self, fixed):
        if fixed:
            rest = torch.flip(torch.logcumsumexp(torch.flip(self.scores, [0]), 0), [0])
            return (rest - self.scores).sum()
        return list_mle(self.scores)


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
