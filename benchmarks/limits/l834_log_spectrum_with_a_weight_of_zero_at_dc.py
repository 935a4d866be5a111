"""Weighted log spectrum of a signal without mean; the bin of frequency 0 has a weight of 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.1991493551,
}


class LogSpectrum(nn.Module):
    def forward(self, x):
        return torch.log(torch.fft.rfft(x).abs())  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, -0.75, 1.0, -0.75]))
        self.spectrum = LogSpectrum()

    def forward(self, fixed):
        weight = torch.tensor([0.0, 1.0, 0.5])
        target = torch.tensor([0.0, -0.3, 0.8])
        if fixed:
            gap = torch.log(torch.fft.rfft(self.x)[1:].abs()) - target[1:]
            return (weight[1:] * gap.pow(2)).sum()
        return (weight * (self.spectrum(self.x) - target).pow(2)).sum()


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
