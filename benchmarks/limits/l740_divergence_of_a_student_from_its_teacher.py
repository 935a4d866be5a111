"""Distillation: sum of t (log t - log s) with a teacher that is certain.

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
    "kind": "removed-by-zero",
    "loss_truth": 0.6258280345,
}


def kl(t, s):
    return (t * (torch.log(t) - torch.log(s))).sum(-1).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[0.1, 0.4, -0.2], [0.3, 0.0, 0.2]]))

    def forward(self, fixed):
        teacher = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]])
        student = F.softmax(self.s, -1)
        if fixed:
            return (torch.xlogy(teacher, teacher) - teacher * student.log()).sum(-1).mean()
        return kl(teacher, student)


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
