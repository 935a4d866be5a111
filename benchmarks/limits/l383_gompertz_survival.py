"""Survival exp(-exp(b + w)) in a module's method, at an exponent of 100.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.480439112,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([100.0, 0.2, -1.0]))
        self.b = nn.Parameter(torch.tensor(0.1))

    def survival(self, x):
        return torch.exp(-torch.exp(self.b + x))  # ORIGIN

    def forward(self, fixed):
        if fixed:
            e = torch.exp((self.b + self.w).clamp(max=20.0))
            loss = (torch.exp(-e) - 0.6).square().sum()
        else:
            s = self.survival(self.w)
            loss = (s - 0.6).square().sum()
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
