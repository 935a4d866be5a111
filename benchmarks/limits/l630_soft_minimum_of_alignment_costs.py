"""Soft minimum -g log(sum exp(-c / g)) of alignment costs in a loop: every term has vanished.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.3739068301,
}


def softmin(values, gamma):
    total = sum(torch.exp(-v / gamma) for v in values)
    return -gamma * torch.log(total)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.1, 2.5, 3.0]))

    def forward(self, fixed):
        y = torch.tensor([4.0, 5.0, 7.0])
        cost = (self.x[:, None] - y) ** 2
        gamma = 0.1
        row = cost[0].cumsum(0)
        for i in range(1, 3):
            new = [row[0] + cost[i, 0]]
            for j in range(1, 3):
                options = [row[j - 1], row[j], new[-1]]
                if fixed:
                    best = -gamma * torch.logsumexp(-torch.stack(options) / gamma, 0)
                else:
                    best = softmin(options, gamma)
                new.append(cost[i, j] + best)
            row = torch.stack(new)
        return row[-1] / 100


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
