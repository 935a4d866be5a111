"""Isotropic total variation sqrt(dx^2 + dy^2) of an image with a flat patch.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.1793696414,
    "bound": 0.5,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.tensor([[0.5, 0.5, 0.9], [0.5, 0.1, 0.3], [0.2, 0.8, 0.4]]))

    def forward(self, fixed):
        dx = self.image[:-1, 1:] - self.image[:-1, :-1]
        dy = self.image[1:, :-1] - self.image[:-1, :-1]
        if fixed:
            tv = torch.linalg.vector_norm(torch.stack([dx, dy]), dim=0)
        else:
            tv = torch.sqrt(dx**2 + dy**2)  # ORIGIN
        return 0.1 * tv.sum()


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
    true["image"][0, :2] = math.nan
    true["image"][1, 0] = math.nan
    return true
