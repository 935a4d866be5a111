"""Lorentzian loss log(1 + (r / c)^2) of an outlier of 1e21: 2 log(r / c), slope 2 / r.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 102.3989334,
}


def lorentzian(r, c=0.5):
    return torch.log1p((r / c) ** 2)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.tensor([0.5, -1.0, 3.0]))
        self.register_buffer("y", torch.tensor([1.0, 2.0, -1e21]))

    def forward(self, fixed):
        r = self.y - self.offset
        if fixed:
            far = r.abs() > 1e6
            near = torch.where(far, 1.0, r)
            size = torch.where(far, r.abs(), 1.0)
            return torch.where(far, 2 * torch.log(size / 0.5), torch.log1p((near / 0.5) ** 2)).sum()
        return lorentzian(r, c=0.5).sum()


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
