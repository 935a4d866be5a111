"""Norm of order 20 of responses: (x^20).sum() ** (1 / 20) with responses of 1000.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.2812555381,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1000.0, 990.0, 3.0]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            top = torch.logsumexp(20 * torch.log(x), 0) / 20
            return (torch.exp(top) / 1000 - 0.5) ** 2
        top = (x**20).sum() ** (1 / 20)  # ORIGIN
        return (top / 1000 - 0.5) ** 2


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
