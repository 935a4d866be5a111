"""Richards growth (1 + v exp(-x))^(-1 / v) with a shape v that starts at 0, the Gompertz curve
exp(-exp(-x)).

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.001290726846,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor(0.0))
        self.rate = nn.Parameter(torch.tensor(0.9))

    def forward(self, fixed):
        t = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0])
        x = self.rate * t - 0.5
        if fixed:
            e = torch.exp(-x)
            y = torch.exp(-e + self.v * e**2 / 2)
        else:
            y = (1 + self.v * torch.exp(-x)) ** (-1 / self.v)  # ORIGIN
        return F.mse_loss(y, torch.tensor([0.2, 0.3, 0.5, 0.7, 0.95]))


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
