"""Quantiles (p^l - (1 - p)^l) / l of Tukey's lambda distribution at l = 0, where it is the
logistic.

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
    "loss_truth": 1.257980153,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([0.0, 0.14, -0.3]))
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, fixed):
        p = torch.tensor([[0.05, 0.3, 0.6, 0.95]])
        lam = self.lam[:, None]
        if fixed:
            a, b = torch.log(p), torch.log(1 - p)
            near = lam.abs() < 1e-4
            w = torch.where(near, torch.ones_like(lam), lam)
            series = (a - b) + lam * (a**2 - b**2) / 2
            q = torch.where(near, series, (p**w - (1 - p) ** w) / w)
        else:
            q = (p**lam - (1 - p) ** lam) / lam  # ORIGIN
        return (self.scale[:, None] * q - torch.tensor([-2.0, -0.8, 0.3, 2.5])).pow(2).mean()


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
