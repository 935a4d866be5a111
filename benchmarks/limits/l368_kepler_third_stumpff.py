"""Stumpff function (s - sin s) / s^3 with s = sqrt(z), z = 0: 1/6.

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
    "loss_truth": 0.9439601221,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([0.0, 0.9, 2.5]))

    def forward(self, fixed):
        if fixed:
            near = self.z < 0.1
            z = torch.where(near, torch.ones_like(self.z), self.z)
            s = torch.sqrt(z)
            c3 = torch.where(near, 1 / 6 - self.z / 120 + self.z**2 / 5040, (s - torch.sin(s)) / s**3)
            loss = (c3 * 6 - 0.5).square().sum() + self.z.sum() * 0.1
        else:
            s = torch.sqrt(self.z)
            c3 = (s - torch.sin(s)) / s**3  # ORIGIN
            loss = (c3 * 6 - 0.5).square().sum() + self.z.sum() * 0.1
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
