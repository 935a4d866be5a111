"""Harmonic mean of precisions of which one is 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1811570248,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.8], [0.5, 0.6]]))

    def forward(self, fixed):
        if fixed:
            mean = 2 * self.x[:, 0] * self.x[:, 1] / self.x.sum(1)
            loss = (mean - 0.4).square().sum()
        else:
            mean = 2 / (1 / self.x).sum(1)  # ORIGIN
            loss = (mean - 0.4).square().sum()
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
