"""Focal loss with an exponent of one half, (1 - p)^0.5 (-log p), of a probability that is 1.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.4713859986,
}


class FocalLoss(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits):
        p = torch.sigmoid(logits)
        return ((1 - p) ** self.gamma * -torch.log(p)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([40.0, 0.5, -1.0]))
        self.loss = FocalLoss(0.5)

    def forward(self, fixed):
        if fixed:
            logs = F.logsigmoid(self.logits)
            return (torch.exp(0.5 * F.logsigmoid(-self.logits)) * -logs).mean()
        return self.loss(self.logits)


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
