"""Cosine of two vectors of length 1e20: dot product and squares overflow.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "kind": "overflow",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.3198512439,
}


def cosine(a, b):
    return (a * b).sum(-1) / torch.sqrt((a * a).sum(-1) * (b * b).sum(-1))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[3e20, 4e20], [1.0, 0.5]]))
        self.b = nn.Parameter(torch.tensor([[5e20, 12e20], [-0.2, 0.7]]))

    def forward(self, fixed):
        if fixed:
            c = cosine(*(v / v.abs().amax(-1, keepdim=True) for v in (self.a, self.b)))
        else:
            c = cosine(self.a, self.b)
        return (c - 0.5).square().sum()


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
