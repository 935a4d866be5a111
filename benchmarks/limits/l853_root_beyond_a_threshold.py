"""Response sqrt(r - 1) beyond a threshold, 0 below it, by where; one stimulus is below, one exactly
at it.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.6007900212,
}


class Threshold(nn.Module):
    def forward(self, r):
        return torch.where(r > 1, torch.sqrt(r - 1), torch.zeros_like(r))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.4, 1.0, 1.9]))
        self.response = Threshold()

    def forward(self, fixed):
        if fixed:
            return (torch.sqrt(self.r[2] - 1) - 0.3) ** 2 + 0.18
        return (self.response(self.r) - 0.3).pow(2).sum()


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
