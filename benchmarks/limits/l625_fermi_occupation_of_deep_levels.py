"""Occupation 1 / (exp((e - mu) / T) + 1) of levels far above the chemical potential at low
temperature.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.6766121104,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([0.1, 0.48, 0.55, 2.0]))
        self.mu = nn.Parameter(torch.tensor(0.5))

    def forward(self, fixed):
        T = 0.01
        if fixed:
            f = torch.sigmoid(-(self.e - self.mu) / T)
        else:
            f = 1 / (torch.exp((self.e - self.mu) / T) + 1)  # ORIGIN
        return (f.sum() - 1.5).pow(2) + (f * self.e).sum()


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
