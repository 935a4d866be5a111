"""log of the normal distribution's tail by erf, at -12.

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
    "loss_truth": 76.06483694218075,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([-12.0, 0.3, 1.0]))

    def forward(self, fixed):
        if fixed:
            loss = -torch.special.log_ndtr(self.z).sum()
        else:
            cdf = 0.5 * (1 + torch.erf(self.z / math.sqrt(2)))
            loss = -torch.log(cdf).sum()  # ORIGIN
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
