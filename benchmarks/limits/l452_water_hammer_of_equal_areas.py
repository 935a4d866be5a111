"""Log-mean difference (a - b) / log(a / b) in a method, both areas equal.

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
    "loss_truth": 6.328085123,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.b = nn.Parameter(torch.tensor([2.0, 1.5]))

    def mean(self, a, b):
        return (a - b).div(a.log() - b.log())  # ORIGIN

    def forward(self, fixed):
        if fixed:
            d = self.a - self.b
            near = d == 0
            b = torch.where(near, self.b + 1, self.b)
            loss = (torch.where(near, (self.a + self.b) / 2, (self.a - b) / torch.log(self.a / b)) * torch.tensor([1.0, 2.0])).sum()
        else:
            loss = (self.mean(self.a, self.b) * torch.tensor([1.0, 2.0])).sum()
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
