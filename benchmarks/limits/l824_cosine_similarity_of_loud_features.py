"""Cosine similarity by its formula of features whose squares overflow.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.9660061145,
}


def cosine(a, b):
    na = torch.sqrt((a * a).sum(-1))
    nb = torch.sqrt((b * b).sum(-1))
    return (a * b).sum(-1) / (na * nb)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.4, 0.9], [1.0, -0.3]]))

    def forward(self, fixed):
        b = torch.tensor([[0.7, 0.2], [0.5, 0.6]])
        if fixed:
            return (1 - cosine(self.a, b)).sum()
        gain = 1.5e20
        return (1 - cosine(self.a * gain, b * gain)).sum()


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
