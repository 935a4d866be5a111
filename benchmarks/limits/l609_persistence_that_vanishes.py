"""Mean square displacement of a persistent walk, 2 v^2 p (t - p (1 - exp(-t / p))), for a
persistence of 0.

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
    "loss_truth": 0.4568251991,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
        self.v = nn.Parameter(torch.tensor([1.0, 0.7, 0.4]))

    def forward(self, fixed):
        t = torch.tensor([1.0, 2.0, 4.0])
        p, v = self.p, self.v
        if fixed:
            zero = p == 0
            q = torch.where(zero, torch.ones_like(p), p)
            decay = torch.where(zero, torch.zeros_like(p), torch.exp(-t / q))
        else:
            decay = torch.exp(-t / p)  # ORIGIN
        msd = 2 * v**2 * p * (t - p * (1 - decay))
        return (msd - torch.tensor([0.3, 1.0, 2.0])).pow(2).sum()


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
