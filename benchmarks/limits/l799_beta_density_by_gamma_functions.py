"""Beta likelihood with the gamma functions as exp(lgamma), shapes of 30 and 20.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -1.01374275,
}


def gamma(x):
    return torch.exp(torch.lgamma(x))


def beta_density(x, a, b):
    norm = gamma(a) * gamma(b) / gamma(a + b)  # ORIGIN
    return x ** (a - 1) * (1 - x) ** (b - 1) / norm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([30.0, 2.0]))
        self.b = nn.Parameter(torch.tensor([20.0, 3.0]))

    def forward(self, fixed):
        x = torch.tensor([0.55, 0.3])
        a, b = self.a, self.b
        if fixed:
            logs = (a - 1) * torch.log(x) + (b - 1) * torch.log1p(-x)
            return -(logs - torch.lgamma(a) - torch.lgamma(b) + torch.lgamma(a + b)).mean()
        return -torch.log(beta_density(x, a, b)).mean()


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
