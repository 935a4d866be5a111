"""Arc cosine of a cosine inside of its domain, 0 by where beyond it; rounding had made one 1.2.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "acos",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.8858520154,
}


def angle(c):
    return torch.where(c.abs() < 1, torch.acos(c), torch.zeros_like(c))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor([1.2, 0.3]))
        self.gain = nn.Parameter(torch.tensor([1.0, 0.9]))

    def forward(self, fixed):
        if fixed:
            return (angle(self.c[1] * self.gain[1]) - 0.5) ** 2 + 0.25
        return (angle(self.c * self.gain) - 0.5).pow(2).sum()


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
