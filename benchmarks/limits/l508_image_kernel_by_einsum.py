"""A separable sinc kernel by einsum, with the centre tap at an offset of exactly 0.

Source: well-known fault
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.3115304674,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([0.0, 0.3]))
        self.register_buffer("taps", torch.arange(-1.0, 2.0))

    def forward(self, fixed):
        at = math.pi * (self.taps[None] - self.shift[:, None])
        if fixed:
            line = torch.sinc(at / math.pi)
        else:
            line = at.sin() / at  # ORIGIN
        kernel = torch.einsum("i,j->ij", line[0], line[1])
        goal = torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.5, 0.3], [0.1, 0.0, 0.0]])
        return F.mse_loss(kernel, goal, reduction="sum")


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
