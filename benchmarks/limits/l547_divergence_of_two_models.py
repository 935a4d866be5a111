"""Distillation: KL of a student's softmax to a teacher's by logs, models called in the step.

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
    "loss_truth": 84.35213161,
}


class Head(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, x):
        return x @ self.w


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Head([[100.0, 0.3, -0.2], [0.4, 1.0, 2.0]])
        self.teacher = Head([[1.0, 0.3, -0.2], [0.4, 90.0, 2.0]])

    def forward(self, fixed):
        x = torch.tensor([[1.5, 1.2], [0.2, 0.1]])
        if fixed:
            a, b = F.log_softmax(self.teacher(x), -1), F.log_softmax(self.student(x), -1)
            return (a.exp() * (a - b)).sum(1).mean()
        target = self.teacher(x).softmax(-1)
        found = self.student(x).softmax(-1)
        return (target * (target.log() - found.log())).sum(dim=1).mean()  # ORIGIN


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
