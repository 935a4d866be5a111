"""Attention pooling exp(s) m / sum exp(s) m of a sequence that is padding throughout; its row is
dropped by torch.where.

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
    "kind": "masked",
    "loss_truth": 0.3580136443,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([[0.3, -0.5, 1.0], [0.2, 0.4, 0.1]]))
        self.v = nn.Parameter(torch.tensor([[1.0, 0.5, -0.2], [0.3, 0.8, 0.6]]))

    def forward(self, fixed):
        m = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        e = torch.exp(self.s) * m
        total = e.sum(1, keepdim=True)
        if fixed:
            total = torch.where(total == 0, torch.ones_like(total), total)
        w = e / total  # ORIGIN
        pooled = (w * self.v).sum(1)
        pooled = torch.where(m.sum(1) > 0, pooled, torch.zeros(2))
        return (pooled - 0.4).pow(2).sum()


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
