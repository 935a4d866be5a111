"""Balanced accuracy by class, hits / count, with a class that does not occur and the weight 0.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.5717088153,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[1.0, 0.2, -0.3], [0.1, 0.5, 0.3], [0.4, -0.2, 0.8]]))

    def forward(self, fixed):
        y = F.one_hot(torch.tensor([0, 1, 0]), 3).float()
        p = torch.softmax(self.z, 1)
        hits, count = (p * y).sum(0), y.sum(0)
        if fixed:
            recall = hits / count.clamp_min(1)
        else:
            recall = hits / count  # ORIGIN
        weight = torch.tensor([0.5, 0.5, 0.0])
        return 1 - (weight * recall).sum()


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
