"""Rotation vector 2 atan2(|v|, w) v / |v| of a quaternion that is the identity.

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
    "kind": "removable",
    "loss_truth": 0.1673097224,
}


def rotation_vector(q):
    w, v = q[..., :1], q[..., 1:]
    n = v.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(n, w)
    return angle * v / n  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.8, 0.1, -0.5, 0.3]]))

    def forward(self, fixed):
        goal = torch.tensor([[0.1, -0.2, 0.3], [0.2, -1.0, 0.5]])
        if fixed:
            first = 2 * self.q[:1, 1:] / self.q[:1, :1]
            found = torch.cat([first, rotation_vector(self.q[1:])])
        else:
            found = rotation_vector(self.q)
        return (found - goal).square().sum()


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
