"""sin(x) / x in float16.

Source: well-known fault (kernels in half precision)
"""
import math

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
    "loss_truth": 5.832518578,
}


class Low(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 1.5], dtype=torch.float16))

    def forward(self, fixed):
        if fixed:
            kernel = torch.sinc(self.x / math.pi)
        else:
            kernel = torch.sin(self.x) / self.x  # ORIGIN
        loss = (kernel * (self.x + 1)).float().pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Low()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64, requires_grad=True)
    kernel = torch.sinc(x / math.pi)
    loss = (kernel * (x + 1)).float().pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
