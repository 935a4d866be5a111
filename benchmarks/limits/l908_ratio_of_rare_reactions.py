"""Selectivity k1 / (k1 + k2) of two rates by Arrhenius at 100 K: both round to 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.07823489545,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Parameter(torch.tensor([98.0, 96.5]))
        self.pre = nn.Parameter(torch.tensor([2.0, 1.0]))

    def rate(self, n, temperature):
        return self.pre[n] * torch.exp(-self.energy[n] / (0.0083145 * temperature))

    def forward(self, fixed):
        temperature = torch.tensor([100.0, 900.0])
        if fixed:
            logs = [self.pre[n].log() - self.energy[n] / (0.0083145 * temperature) for n in (0, 1)]
            share = torch.sigmoid(logs[0] - logs[1])
        else:
            k1, k2 = self.rate(0, temperature), self.rate(1, temperature)
            share = k1 / (k1 + k2)  # ORIGIN
        return (share - 0.5).square().sum()


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
