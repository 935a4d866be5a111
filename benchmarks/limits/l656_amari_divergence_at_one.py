"""Amari's alpha divergence 4 / (1 - a^2) (1 - sum p^((1 - a) / 2) q^((1 + a) / 2)) with a learned
order that starts at 1.

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
    "loss_truth": 0.0005794194983,
}


def amari(p, q, a):
    overlap = (p ** ((1 - a) / 2) * q ** ((1 + a) / 2)).sum()
    return 4 / (1 - a**2) * (1 - overlap)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0))
        self.z = nn.Parameter(torch.tensor([1.5, -0.5, 0.0]))

    def forward(self, fixed):
        p = torch.tensor([0.5, 0.25, 0.25])
        q = torch.softmax(self.z, 0)
        if fixed:
            d = self.a - 1
            r = torch.log(p) - torch.log(q)
            kl = -(q * r).sum()
            second = (q * r**2).sum()
            divergence = 4 / (2 + d) * (kl / 2 + d * second / 8)
        else:
            divergence = amari(p, q, self.a)
        return (divergence - 0.1).pow(2)


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
