"""Ewald's long-range potential erf(a r) / r summed over all pairs, the ion itself at r = 0 among
them: 2 a / sqrt(pi).

Source: well-known fault
"""

import math

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
    "loss_truth": 0.3578683404,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.3], [-0.4, 0.9]]))
        self.alpha = nn.Parameter(torch.tensor(0.8))

    def forward(self, fixed):
        q = torch.tensor([1.0, -1.0, 0.5])
        d2 = (self.x[:, None] - self.x[None, :]).pow(2).sum(-1)
        if fixed:
            eye = torch.eye(3, dtype=torch.bool)
            r = torch.where(eye, torch.ones_like(d2), d2).sqrt()
            phi = torch.where(eye, 2 * self.alpha / math.pi**0.5, torch.erf(self.alpha * r) / r)
        else:
            r = torch.sqrt(d2)
            phi = torch.erf(self.alpha * r) / r  # ORIGIN
        return (q[:, None] * q * phi).sum() / 2


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
