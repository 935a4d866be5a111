"""Market shares exp(v) / (1 + sum exp(v)) with an outside good: a utility of 95.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.1144844418,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.price = nn.Parameter(torch.tensor(-2.0))
        self.quality = nn.Parameter(torch.tensor([95.0, 93.5, 1.0]))

    def shares(self, v):
        e = torch.exp(v)  # ORIGIN
        return e / (1 + e.sum())

    def forward(self, fixed):
        v = self.quality + self.price * torch.tensor([1.0, 0.5, 0.2])
        if fixed:
            s = torch.softmax(torch.cat([v, torch.zeros(1)]), 0)[:3]
        else:
            s = self.shares(v)
        return (s - torch.tensor([0.3, 0.4, 0.1])).pow(2).sum()


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
