"""Heteroscedastic regression with a softplus by hand, log(exp(x) + 1), as the variance.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.138172873,
}


class Heteroscedastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(1, 1)
        self.noise = nn.Linear(1, 1)
        with torch.no_grad():
            self.mean.weight.fill_(1.5)
            self.mean.bias.fill_(0.2)
            self.noise.weight.fill_(60.0)
            self.noise.bias.fill_(-1.0)

    def forward(self, x):
        return self.mean(x), torch.log(torch.exp(self.noise(x)) + 1.0)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Heteroscedastic()

    def forward(self, fixed):
        x, y = torch.tensor([[2.0], [0.01]]), torch.tensor([[9.0], [0.5]])
        if fixed:
            mean, var = self.model.mean(x), F.softplus(self.model.noise(x))
        else:
            mean, var = self.model(x)
        return 0.5 * (torch.log(var) + (y - mean) ** 2 / var).mean()


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
