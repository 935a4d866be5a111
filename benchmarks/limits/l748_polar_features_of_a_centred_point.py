"""Radius sqrt(x^2 + y^2) of centred points as polar features; one lies in the centre.

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
    "kind": "no-limit",
    "loss_truth": 1,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.xy = nn.Parameter(torch.tensor([[0.0, 0.0], [0.6, 0.8]]))

    def forward(self, fixed):
        x, y = self.xy[:, 0], self.xy[:, 1]
        if fixed:
            return torch.sqrt(x**2 + y**2 + 1e-24).sum()
        r = (x**2 + y**2) ** 0.5  # ORIGIN
        return r.sum()


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
    true["xy"][0] = float("nan")
    return true
