"""Transmittance up to a sample as cumprod(1 - alpha) / (1 - alpha), with one opaque sample.

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
    "kind": "removable",
    "loss_truth": 0.2116,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([0.2, 0.5, 1.0]))
        self.color = nn.Parameter(torch.tensor([0.3, 0.9, 0.6]))

    def forward(self, fixed):
        clear = 1 - self.alpha
        if fixed:
            light = torch.cat([torch.ones(1), torch.cumprod(clear[:-1], 0)])
        else:
            light = torch.cumprod(clear, 0) / clear  # ORIGIN
        return ((light * self.alpha * self.color).sum() - 0.2) ** 2


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
