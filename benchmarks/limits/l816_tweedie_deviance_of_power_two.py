"""Tweedie deviance by its formula at power 2, where it is the gamma deviance: (y^(2-p) /
((1-p)(2-p)) - y mu^(1-p) / (1-p) + mu^(2-p) / (2-p)).

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.5900763284,
}


class Tweedie(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.0, 1.5]))

    def forward(self, mu, y):
        p = self.p
        a = (y ** (2 - p) - mu ** (2 - p)) / (2 - p)  # ORIGIN
        b = y * (y ** (1 - p) - mu ** (1 - p)) / (1 - p)
        return 2 * (b - a)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([1.3, 0.6]))
        self.deviance = Tweedie()

    def forward(self, fixed):
        y = torch.tensor([0.8, 1.1])
        if fixed:
            out = 0.0
            for i in range(2):
                e = 2 - self.deviance.p[i]
                if i == 0:
                    ly, lm = torch.log(y[0]), torch.log(self.mu[0])
                    a = ly - lm + e * (ly**2 - lm**2) / 2
                else:
                    a = (y[i] ** e - self.mu[i] ** e) / e
                b = y[i] * (y[i] ** (e - 1) - self.mu[i] ** (e - 1)) / (e - 1)
                out = out + 2 * (b - a)
            return out
        return self.deviance(self.mu, y).sum()


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
