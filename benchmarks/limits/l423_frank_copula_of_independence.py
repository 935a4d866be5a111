"""Frank's copula log1p(expm1(-s u) expm1(-s v) / expm1(-s)) / (-s) at s = 0, where it is u v.

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
    "loss_truth": 0.1152440749,
    "origins": 1,
}


def frank(u, v, s):
    ratio = torch.expm1(-s * u) * torch.expm1(-s * v) / torch.expm1(-s)  # ORIGIN
    return -torch.log1p(ratio) / s


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.0, 1.5]))
        self.register_buffer('u', torch.tensor([0.3, 0.6]))
        self.register_buffer('v', torch.tensor([0.8, 0.4]))

    def forward(self, fixed):
        if fixed:
            near = self.s == 0
            s = torch.where(near, 1.0, self.s)
            independent = self.u * self.v * (1 + self.s * (1 - self.u) * (1 - self.v) / 2)
            joint = torch.where(near, independent, frank(self.u, self.v, s))
            loss = (joint - 0.5).pow(2).sum()
        else:
            joint = frank(self.u, self.v, self.s)
            loss = (joint - 0.5).pow(2).sum()
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
