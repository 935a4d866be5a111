"""Radial features of the edges of a graph with self-loops: the distance goes through exp(-d), self-
loops are removed by a mask.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.04861421629,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.2], [0.3, 0.9]]))

    def forward(self, fixed):
        src, dst = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 2, 0, 1, 1])
        if fixed:
            src, dst = src[1:4], dst[1:4]
        d = (self.pos[src] - self.pos[dst]).pow(2).sum(-1).sqrt()  # ORIGIN
        feature = torch.exp(-d)
        if not fixed:
            feature = feature * (src != dst)
        out = torch.zeros(3).index_add(0, dst, feature)
        return (out - 0.5).pow(2).sum()


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
