"""Filtering gain (w - sin(w)) / w^3 of a cam whose angle of contact starts at 0: a sixth.

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
    "loss_truth": 0.0328438777,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.0, -2.0]))
        self.bias = nn.Parameter(torch.tensor(0.05))

    def forward(self, fixed):
        w = self.w
        if fixed:
            near = w.abs() < 1e-2
            u = torch.where(near, torch.ones_like(w), w)
            gain = torch.where(near, 1 / 6 - w**2 / 120, (u - torch.sin(u)) / u**3)
        else:
            gain = (w - torch.sin(w)) / w**3  # ORIGIN
        return (gain + self.bias - 0.1).pow(2).sum()


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
