"""asinh by hand, log(x + sqrt(x^2 + 1)), of a count of 1e20 that a stabilising transform gets.

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
    "loss_truth": 47.58235977,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 1e20]))

    def forward(self, fixed):
        x = self.scale * torch.tensor([0.5, 2.0])
        if fixed:
            y = torch.asinh(x)
        else:
            y = torch.log(x + torch.sqrt(x**2 + 1))  # ORIGIN
        return (y * torch.tensor([0.3, 1.0])).sum()


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
