"""Quantisation-aware training: weights over max |w| / 127 of their channel, rounded, scaled back,
gradient straight through; one channel is pruned to zero.

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
    "loss_truth": 0.4577299709,
}


def fake_quantise(w):
    scale = w.abs().amax(dim=1, keepdim=True) / 127
    q = torch.round(w / scale)  # ORIGIN
    return w + (q * scale - w).detach()


class QuantLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.5, -0.3], [0.0, 0.0], [0.2, 0.9]]))
        self.bias = nn.Parameter(torch.tensor([0.1, -0.2, 0.3]))

    def forward(self, x):
        return x @ fake_quantise(self.weight).t() + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = QuantLinear()

    def forward(self, fixed):
        x = torch.tensor([[0.4, 1.2], [-0.7, 0.5]])
        if fixed:
            w = self.layer.weight
            scale = w.abs().amax(dim=1, keepdim=True) / 127
            safe = torch.where(scale == 0, torch.ones_like(scale), scale)
            w = w + (torch.round(w / safe) * scale - w).detach()
            y = x @ w.t() + self.layer.bias
        else:
            y = self.layer(x)
        return (y**2).mean()


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
    return {name: p.grad for name, p in net.named_parameters()}
