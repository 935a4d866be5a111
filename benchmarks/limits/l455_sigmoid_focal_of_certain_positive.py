"""Focal factor (1 - p)^0.5 of a positive scored 50: its derivative at p = 1 is infinite, times 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "root-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.2015621447,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([50.0, 0.3, -1.0]))

    def forward(self, fixed):
        if fixed:
            loss = (torch.exp(0.5 * nn.functional.logsigmoid(-self.z)) * torch.sigmoid(self.z)).mean()
        else:
            p = torch.sigmoid(self.z)
            loss = ((1 - p) ** 0.5 * p).mean()  # ORIGIN
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
