"""Beta prior (a - 1) log x + (b - 1) log(1 - x) with a = 1 at x = 0: 0 times -inf.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 3.188948038,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, 0.8]))
        self.register_buffer('a', torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer('b', torch.tensor([2.0, 3.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            loss = -(torch.xlogy(self.a[1:] - 1, self.x[1:]).sum() + ((self.b - 1) * torch.log(1 - self.x)).sum())
        else:
            loss = -((self.a - 1) * torch.log(self.x) + (self.b - 1) * torch.log(1 - self.x)).sum()  # ORIGIN
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
