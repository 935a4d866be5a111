"""torch.where(x == 0, 1, sin(x) / x): the value is right, the gradient is not.

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
    "kind": "masked",
    "loss_truth": 64.75240825,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            y = torch.sinc(x / math.pi)
        else:
            y = torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)  # ORIGIN
        return (y * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().square()


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
