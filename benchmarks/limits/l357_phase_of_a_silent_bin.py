"""Magnitude times phase z / |z| of a spectrum with a silent bin, whose target is 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.4771089371,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.re = nn.Parameter(torch.tensor([0.0, 0.6, -1.0]))
        self.im = nn.Parameter(torch.tensor([0.0, -0.8, 0.5]))

    def forward(self, fixed):
        if fixed:
            r = torch.hypot(self.re[1:], self.im[1:])
            target = torch.tensor([1.2, 0.7])
            loss = 0.09 + (target * self.re[1:] / r - 0.3).square().sum() + (target * self.im[1:] / r).sum()
            loss = loss + 0 * (self.re[0] + self.im[0])
        else:
            z = torch.complex(self.re, self.im)
            target = torch.tensor([0.0, 1.2, 0.7])
            projected = target * z / z.abs()  # ORIGIN
            loss = (projected.real - 0.3).square().sum() + projected.imag.sum()
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
