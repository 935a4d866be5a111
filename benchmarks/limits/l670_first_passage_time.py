"""Distribution function of an inverse Gaussian, Phi(a) + exp(2 l / m) Phi(b): infinity times 0.

Source: well-known fault
"""

import math

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "mul",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.0432896576,
}


def Phi(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.tensor(1.0))
        self.l = nn.Parameter(torch.tensor(60.0))

    def forward(self, fixed):
        x = torch.tensor([0.7, 1.0, 1.3])
        root = torch.sqrt(self.l / x)
        if fixed:
            second = torch.exp(
                2 * self.l / self.m + torch.special.log_ndtr(-root * (x / self.m + 1))
            )
        else:
            second = torch.exp(2 * self.l / self.m) * Phi(-root * (x / self.m + 1))  # ORIGIN
        cdf = Phi(root * (x / self.m - 1)) + second
        return (cdf - torch.tensor([0.1, 0.5, 0.8])).pow(2).sum()


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
