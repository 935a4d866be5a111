"""Clipped policy loss, min(r A, clip(r) A) with A > 0, of a ratio that overflows: the clipped term
is the smaller one.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.5887091138,
}


class ClippedLoss(nn.Module):
    def forward(self, new, old, advantage):
        ratio = torch.exp(new - old)  # ORIGIN
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.min(ratio * advantage, clipped * advantage).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.new = nn.Parameter(torch.tensor([-0.5, -1.2, -0.1]))
        self.loss = ClippedLoss()

    def forward(self, fixed):
        old = torch.tensor([-0.6, -1.0, -100.0])
        advantage = torch.tensor([0.7, -0.4, 1.1])
        if fixed:
            return (2 * self.loss(self.new[:2], old[:2], advantage[:2]) - 1.2 * advantage[2]) / 3
        return self.loss(self.new, old, advantage)


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
