"""Inverse Box-Cox (l y + 1)^(1 / l) with a power per column, one of which is 0: exp(y).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2777457666,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.head = nn.Parameter(torch.tensor([0.4, 1.2]))

    def inverse(self, y, lam):
        return (lam * y + 1) ** (1 / lam)  # ORIGIN

    def forward(self, fixed):
        if fixed:
            l, y = self.lam[1], self.head
            zero = torch.exp(y[0]) * (1 - self.lam[0] * y[0] ** 2 / 2)
            price = torch.stack([zero, (l * y[1] + 1) ** (1 / l)])
        else:
            price = self.inverse(self.head, self.lam)
        return (price - torch.tensor([1.0, 2.0])).square().mean()


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
