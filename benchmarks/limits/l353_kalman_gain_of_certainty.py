"""Kalman gain p / (p + r) where state and sensor are both certain, and agree.

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
    "kind": "masked",
    "loss_truth": 1.06,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.r = nn.Parameter(torch.tensor([0.0, 0.25]))

    def forward(self, fixed):
        if fixed:
            gain = self.p[1] / (self.p[1] + self.r[1])
            loss = 0.25 + (0.5 + gain * 0.6).square() + 0 * (self.p[0] + self.r[0])
        else:
            m = torch.tensor([1.0, 2.0])
            z = torch.tensor([1.0, 2.6])
            gain = self.p / (self.p + self.r)  # ORIGIN
            m = m + gain * (z - m)
            loss = (m - 1.5).square().sum()
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
