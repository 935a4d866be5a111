"""Sum of sin(w_k t) / w_k over learned frequencies in a loop with augmented assignment; one
frequency is 0.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.7205070493,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0, 2.5]))
        self.c = nn.Parameter(torch.tensor([0.4, 1.0, -0.3]))

    def forward(self, fixed):
        t = torch.tensor([0.5, 1.5])
        total = torch.zeros(2)
        for k in range(len(self.w)):
            w = self.w[k]
            if fixed:
                total = total + self.c[k] * t * torch.sinc(w * t / math.pi)
            else:
                total += self.c[k] * torch.sin(w * t) / w  # ORIGIN
        return (total - torch.tensor([0.2, 0.9])).pow(2).sum()


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
