"""Clayton's copula (u^-s + v^-s - 1)^(-1/s) at s = 0, where it is u v.

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
    "loss_truth": 0.1034940209,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.0, 0.9]))
        self.register_buffer('u', torch.tensor([0.3, 0.6]))
        self.register_buffer('v', torch.tensor([0.8, 0.4]))

    def forward(self, fixed):
        if fixed:
            near = self.s == 0
            s = torch.where(near, 1.0, self.s)
            joint = (self.u ** (-s) + self.v ** (-s) - 1) ** (-1 / s)
            joint = torch.where(near, self.u * self.v * (1 + self.s * torch.log(self.u) * torch.log(self.v)), joint)
            loss = (joint - 0.5).pow(2).sum()
        else:
            base = self.u ** (-self.s) + self.v ** (-self.s) - 1
            joint = base ** (-1 / self.s)  # ORIGIN
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
