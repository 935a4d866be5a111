"""log(sigmoid(a) - sigmoid(b)) of a discretised logistic where both are 1.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 20.682752129567188,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor([0.0, -40.0]))

    def forward(self, fixed):
        if fixed:
            a = 0.5 - self.centre
            b = -0.5 - self.centre
            f = torch.nn.functional.logsigmoid
            loss = -(f(a) + f(-b) + math.log(-math.expm1(-1.0))).mean()
        else:
            up = torch.sigmoid(0.5 - self.centre)
            low = torch.sigmoid(-0.5 - self.centre)
            loss = -torch.log(up - low).mean()  # ORIGIN
        return loss


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
    net, _ = build(True)
    net.double()
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
