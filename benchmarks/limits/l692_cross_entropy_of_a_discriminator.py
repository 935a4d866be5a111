"""Discriminator loss log(D(x)) + log(1 - D(G(z))), where D ends in a sigmoid that is certain.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 29.80050251,
}


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
        with torch.no_grad():
            self.net[0].weight.copy_(torch.tensor([[20.0, -5.0]]))
            self.net[0].bias.zero_()

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.D = Discriminator()

    def forward(self, fixed):
        real = torch.tensor([[1.0, 0.5], [0.1, 0.3]])
        fake = torch.tensor([[3.0, 0.2], [0.0, 0.4]])
        if fixed:
            r, f = self.D.net[0](real).squeeze(-1), self.D.net[0](fake).squeeze(-1)
            return -(F.logsigmoid(r) + F.logsigmoid(-f)).mean()
        return -(torch.log(self.D(real)) + torch.log(1 - self.D(fake))).mean()  # ORIGIN


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
