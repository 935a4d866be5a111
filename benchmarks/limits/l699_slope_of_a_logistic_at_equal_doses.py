"""Difference quotient (tanh(b x2) - tanh(b x1)) / (x2 - x1) of a dose response, two doses being
equal after rounding.

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
    "kind": "removable",
    "loss_truth": 0.2867100262,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.2, 0.9, 0.9, 1.6]))
        self.b = nn.Parameter(torch.tensor(1.3))

    def forward(self, fixed):
        lo, hi = self.x[:-1], self.x[1:]
        if fixed:
            same = hi == lo
            u = torch.where(same, torch.ones_like(hi), hi - lo)
            q = (torch.tanh(self.b * hi) - torch.tanh(self.b * lo)) / u
            mid = self.b / torch.cosh(self.b * (hi + lo) / 2) ** 2
            q = torch.where(same, mid, q)
        else:
            q = (torch.tanh(self.b * hi) - torch.tanh(self.b * lo)) / (hi - lo)  # ORIGIN
        return (q - 0.3).pow(2).sum()


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
