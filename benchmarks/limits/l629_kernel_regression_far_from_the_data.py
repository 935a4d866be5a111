"""Nadaraya-Watson regression at a query far from the data: all weights have vanished.

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
    "kind": "overflow",
    "loss_truth": 0.06116384597,
}


def predict(query, x, y, width):
    weight = torch.exp(-((query[:, None] - x) ** 2) / (2 * width**2))
    return (weight * y).sum(1) / weight.sum(1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = nn.Parameter(torch.tensor([0.1, 0.8, 0.4]))
        self.width = nn.Parameter(torch.tensor(0.3))

    def forward(self, fixed):
        x = torch.tensor([0.0, 0.5, 1.0])
        query = torch.tensor([0.2, 6.0, 0.7])
        if fixed:
            w = torch.softmax(-((query[:, None] - x) ** 2) / (2 * self.width**2), 1)
            p = (w * self.y).sum(1)
        else:
            p = predict(query, x, self.y, self.width)
        return (p - torch.tensor([0.3, 0.6, 0.5])).pow(2).sum()


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
