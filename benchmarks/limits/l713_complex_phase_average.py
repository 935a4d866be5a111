"""Mean phasor (exp(i x) - 1) / (i x) over a band; its magnitude against what was measured.

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
    "loss_truth": 0.1840743258,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.2]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            phasor = torch.polar(torch.sinc(x / 2 / math.pi), x / 2)
        else:
            z = torch.complex(torch.zeros_like(x), x)
            phasor = (torch.exp(z) - 1) / z  # ORIGIN
        return (phasor.real - 0.8).pow(2).sum() + (phasor.imag - 0.3).pow(2).sum()


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
