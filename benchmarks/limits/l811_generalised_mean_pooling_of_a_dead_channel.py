"""Generalised mean pooling, mean(x^3)^(1/3), of a channel that is 0 everywhere.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.8557472881,
}


class GeM(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return x.pow(self.p).mean(-1).pow(1.0 / self.p)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.5, 1.2, 0.3]]))
        self.pool = GeM(3.0)

    def forward(self, fixed):
        if fixed:
            return self.pool(self.x[1]) + 0.0 * self.x[0].sum()
        return self.pool(self.x).sum()


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
    true["x"][0] = float("nan")
    return true
