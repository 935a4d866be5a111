"""Focal loss of classes from a softmax: alpha (1 - p)^2 log p with p the probability of the class
by a one-hot sum.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 61.94827768,
}


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        probs = torch.softmax(logits, dim=1)
        onehot = F.one_hot(target, logits.size(1)).to(probs.dtype)
        pt = (probs * onehot).sum(1)
        return (-((1 - pt) ** self.gamma) * pt.log()).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[120.0, 0.0, -3.0], [0.1, 0.9, 0.3]]))
        self.loss = FocalLoss()

    def forward(self, fixed):
        target = torch.tensor([2, 0])
        if fixed:
            logpt = torch.log_softmax(self.logits, 1).gather(1, target[:, None])[:, 0]
            return (-((1 - logpt.exp()) ** 2) * logpt).mean()
        return self.loss(self.logits, target)


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
