"""Scale given by log(exp(s) - 1) of s = 95, in a parametrisation module.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 94.56724787,
}


class Inverse(nn.Module):
    def forward(self, s):
        grown = torch.exp(s)
        return torch.log(grown - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([95.0, 0.5]))
        self.inverse = Inverse()

    def forward(self, fixed):
        if fixed:
            loss = (self.s + torch.log(-torch.expm1(-self.s))).sum()
        else:
            loss = self.inverse(self.s).sum()
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
