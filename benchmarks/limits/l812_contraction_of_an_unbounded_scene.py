"""Contraction of space, x inside the unit ball and (2 - 1 / |x|) x / |x| outside, chosen by where;
a sample lies at the origin.

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
    "kind": "masked",
    "loss_truth": 0.35,
}


def contract(x):
    n = x.norm(dim=-1, keepdim=True)
    return torch.where(n <= 1, x, (2 - 1 / n) * (x / n))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.5, -2.0], [0.3, 0.2]]))

    def forward(self, fixed):
        y = torch.tensor([[0.5, 0.1], [1.0, -1.0], [0.2, 0.2]])
        if fixed:
            out = torch.stack([self.x[0], contract(self.x[1:2])[0], self.x[2]])
        else:
            out = contract(self.x)
        return (out - y).pow(2).sum()


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
