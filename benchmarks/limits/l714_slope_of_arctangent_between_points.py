"""(atan x - atan y) / (x - y) for all pairs of a batch, the pairs of a point with itself among
them.

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
    "loss_truth": 3.197839472,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.8, 1.5]))

    def forward(self, fixed):
        a, b = self.x[:, None], self.x[None, :]
        if fixed:
            d = (a - b) / (1 + a * b)
            same = torch.eye(3, dtype=torch.bool)
            gap = torch.where(same, torch.ones_like(d), a - b)
            slope = torch.where(same, 1 / (1 + a * b), (torch.atan(a) - torch.atan(b)) / gap)
        else:
            slope = (torch.atan(a) - torch.atan(b)) / (a - b)  # ORIGIN
        return (slope * torch.tensor([[0.5, 1.0, 0.2], [0.3, 0.7, 0.4], [0.1, 0.6, 0.9]])).sum()


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
