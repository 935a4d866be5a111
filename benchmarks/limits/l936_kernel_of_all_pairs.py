"""sin(r) / r over the distances of all pairs by cdist, the diagonal too.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 6.164667079,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.3], [1.0, 0.5], [-0.4, 0.9]]))

    def forward(self, fixed):
        r = torch.cdist(self.x, self.x)
        k = torch.sinc(r / math.pi) if fixed else torch.sin(r) / r  # ORIGIN
        return (k * torch.tensor([[1.0, 0.5, 0.2], [0.1, 2.0, 0.3], [0.4, 0.6, 1.5]])).sum()


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
