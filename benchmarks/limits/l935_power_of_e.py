"""Softmax with math.e ** z and a sum by einsum, scores of 95.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "kind": "overflow",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.1858118698,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[95.0, 94.0, 3.0], [0.1, 0.2, 0.3]]))

    def forward(self, fixed):
        if fixed:
            p = torch.softmax(self.z, 1)
        else:
            e = math.e**self.z  # ORIGIN
            p = e / torch.einsum("ij->i", e).unsqueeze(1)
        return (p[:, 0] - 0.3).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
