"""Complex exponential integral (exp(2j pi f T) - 1) / (2j pi f) of a tone at frequency 0.

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
    "loss_truth": 1.686336598,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Parameter(torch.tensor([0.0, 0.3]))

    def forward(self, fixed):
        T = 1.5
        if fixed:
            z = T * torch.polar(torch.sinc(self.f * T), math.pi * self.f * T)
        else:
            z = (torch.exp(2j * math.pi * self.f * T) - 1) / (2j * math.pi * self.f)  # ORIGIN
        return (z.real - 1.0).pow(2).sum() + (z.imag - 0.2).pow(2).sum()


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
