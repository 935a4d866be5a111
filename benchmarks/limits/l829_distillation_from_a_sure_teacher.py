"""Distillation with kl_div of log(softmax(student)) from a teacher that is sure: a probability of
the student is 0, and so is the teacher's.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.01437246093,
}


def distil(student, teacher, temperature):
    p = torch.softmax(student / temperature, -1).log()  # ORIGIN
    q = torch.softmax(teacher / temperature, -1)
    return F.kl_div(p, q, reduction="batchmean") * temperature**2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Parameter(torch.tensor([[30.0, 29.0, -80.0], [0.3, 0.8, -0.2]]))

    def forward(self, fixed):
        teacher = torch.tensor([[40.0, 39.5, -90.0], [0.5, 1.0, 0.1]])
        if fixed:
            p = torch.log_softmax(self.student, -1)
            return F.kl_div(p, torch.softmax(teacher, -1), reduction="batchmean")
        return distil(self.student, teacher, 1.0)


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
