"""Unbiased variance of groups by sums, divided by n - 1; a group of one member has a weight of 0.

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
    "kind": "masked",
    "loss_truth": 0.7733333333,
}


def group_variance(x, member):
    n = member.sum(1)
    mean = (member @ x) / n
    gap = (x[None, :] - mean[:, None]) ** 2
    return (member * gap).sum(1) / (n - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.4, 1.2, -0.3, 0.8]))

    def forward(self, fixed):
        member = torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
        weight = (member.sum(1) > 1).float()
        if fixed:
            return torch.var(self.x[:3]) + 0.1 * self.x.sum()
        return (group_variance(self.x, member) * weight).sum() + 0.1 * self.x.sum()


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
