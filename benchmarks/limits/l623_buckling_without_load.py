"""Stability function cos(sqrt(p)) of a column without load: the infinite slope of the root meets
sin(0).

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "cos",
    "phase": "backward",
    "cause": "cos",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.09318006251,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 1.0, 3.0]))

    def forward(self, fixed):
        if fixed:
            near = self.p < 1e-8
            w = torch.where(near, torch.ones_like(self.p), self.p).sqrt()
            y = torch.where(near, 1 - self.p / 2, torch.cos(w))
        else:
            y = torch.cos(torch.sqrt(self.p))  # ORIGIN
        return (y - torch.tensor([0.7, 0.5, -0.2])).pow(2).sum()


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
