"""Gate sigmoid(x / s) whose learned width has become 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1994767863,
}


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = nn.Parameter(torch.tensor([0.0, 0.5]))

    def forward(self, x):
        return torch.sigmoid(x / self.width)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.gate = Gate()

    def forward(self, fixed):
        if fixed:
            second = torch.sigmoid(self.x[1] / self.gate.width[1])
            return (second - 0.6) ** 2 + 0.16
        return (self.gate(self.x) - 0.6).pow(2).sum()


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
