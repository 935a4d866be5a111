"""log(x + sqrt(x^2 - 1)) of a ratio of 1: the slope is infinite there.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.5234849575,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 1.6]))

    def forward(self, fixed):
        x = self.x
        y = torch.log(x + torch.sqrt(x * x - 1 + (1e-12 if fixed else 0)))  # ORIGIN
        return (y * torch.tensor([1.0, 0.5])).sum()


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
    true["x"][0] = float("inf")
    return true
