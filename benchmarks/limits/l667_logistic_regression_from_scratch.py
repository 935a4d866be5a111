"""Logistic regression from scratch: 1 / (1 + exp(-z)) in one method, both logarithms in another; a
row far from the border.

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
    "loss_truth": 43.48478508,
}


class LogisticRegression(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, -1.0]))
        self.b = nn.Parameter(torch.tensor(0.1))

    def predict_proba(self, x):
        z = x @ self.w + self.b
        return 1 / (1 + torch.exp(-z))

    def loss(self, x, y):
        p = self.predict_proba(x)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = LogisticRegression()

    def forward(self, fixed):
        x = torch.tensor([[20.0, 2.0], [0.3, 1.0], [-60.0, 10.0]])
        y = torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            return F.binary_cross_entropy_with_logits(x @ self.model.w + self.model.b, y)
        return self.model.loss(x, y)


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
