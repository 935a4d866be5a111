"""Poisson deviance 2 (y log(y / m) - y + m) with counts of 0.

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
    "loss_truth": 1.13699552,
}


class Deviance(nn.Module):
    def forward(self, y, mu):
        term = y * torch.log(y / mu)  # ORIGIN
        return 2 * (term - (y - mu))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.5, 1.2, -0.3]))
        self.deviance = Deviance()

    def forward(self, fixed):
        y = torch.tensor([0.0, 3.0, 1.0])
        mu = self.rate.exp()
        if fixed:
            return 2 * (torch.xlogy(y, y) - y * mu.log() - y + mu).mean()
        return self.deviance(y, mu).mean()


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
