"""Depolarisation factor (1 - e^2) / e^3 (atanh(e) - e) of a spheroid of eccentricity 0: a third.

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
    "loss_truth": 0.316972718,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([0.0, 0.5, 0.9]))
        self.eps = nn.Parameter(torch.tensor(4.0))

    def forward(self, fixed):
        e = self.e
        if fixed:
            near = e.abs() < 1e-3
            w = torch.where(near, torch.full_like(e, 0.5), e)
            L = torch.where(near, 1 / 3 - 2 * e**2 / 15, (1 - w**2) / w**3 * (torch.atanh(w) - w))
        else:
            L = (1 - e**2) / e**3 * (torch.atanh(e) - e)  # ORIGIN
        alpha = (self.eps - 1) / (1 + L * (self.eps - 1))
        return (alpha - torch.tensor([1.2, 1.8, 2.5])).pow(2).sum()


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
