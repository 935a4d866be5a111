"""Rotation vector between two directions, angle times axis by the cross product and atan2; one pair
is aligned already.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.859613655,
}


def rotation_between(a, b):
    cross = torch.linalg.cross(a, b)
    s = cross.norm(dim=-1, keepdim=True)
    c = (a * b).sum(-1, keepdim=True)
    return torch.atan2(s, c) * cross / s  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8]]))

    def forward(self, fixed):
        a = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
        if fixed:
            r = torch.stack(
                [torch.linalg.cross(a[0], self.b[0]), rotation_between(a[1:], self.b[1:])[0]]
            )
        else:
            r = rotation_between(a, self.b)
        return (r - torch.tensor([[0.2, -0.1, 0.4], [1.0, 0.2, 0.3]])).pow(2).sum()


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
