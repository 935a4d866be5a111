"""Extreme value distribution (1 + x z)^(-1 / x) at shape x = 0, where it is exp(-z).

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
    "loss_truth": 1.531417192,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shape = nn.Parameter(torch.tensor([0.0, 0.2, -0.1]))
        self.z = nn.Parameter(torch.tensor([0.7, 1.1, 0.4]))

    def forward(self, fixed):
        if fixed:
            near = self.shape == 0
            x = torch.where(near, 1.0, self.shape)
            z = self.z
            loss = torch.where(near, torch.exp(-z) * (1 + self.shape * z**2 / 2), torch.pow(1 + x * z, -1 / x)).sum()
        else:
            t = torch.pow(1 + self.shape * self.z, -1 / self.shape)  # ORIGIN
            loss = t.sum()
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
