"""Discrete hazard p / (1 - cumsum(p) + p): after the last event 0 / 0, with a weight of 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 4.583333333,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.tensor([1.0, 2.0, 1.0]))

    def forward(self, fixed):
        share = self.raw / self.raw.sum()
        p = torch.cat([share, torch.zeros(1)])
        seen = torch.tensor([1.0, 1.0, 1.0, 0.0])
        left = torch.cat([torch.ones(1), torch.tensor([0.75, 0.25, 0.0])]).detach()
        if fixed:
            hazard = p[:3] / left[:3]
            return (hazard * torch.tensor([1.0, 2.0, 3.0])).sum()
        hazard = p / left  # ORIGIN
        return (hazard * seen * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()


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
