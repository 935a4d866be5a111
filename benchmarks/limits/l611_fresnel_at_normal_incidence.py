"""Fresnel's amplitude -sin(i - t) / sin(i + t) for a ray that falls straight down, where both
angles are 0.

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
    "kind": "removable",
    "loss_truth": 0.02415980691,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, 0.4, 1.1]))
        self.n = nn.Parameter(torch.tensor(1.5))

    def forward(self, fixed):
        i, n = self.theta, self.n
        if fixed:
            cos_t = torch.sqrt(1 - (torch.sin(i) / n) ** 2)
            r = (torch.cos(i) - n * cos_t) / (torch.cos(i) + n * cos_t)
        else:
            t = torch.asin(torch.sin(i) / n)
            r = -torch.sin(i - t) / torch.sin(i + t)  # ORIGIN
        return (r.pow(2) - torch.tensor([0.05, 0.06, 0.2])).pow(2).sum() * 100


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
