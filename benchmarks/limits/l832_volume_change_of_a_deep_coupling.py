"""Log volume of a map with a diagonal Jacobian, log |prod diag|, of ten factors of 1e-5.

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
    "kind": "overflow",
    "loss_truth": 0.1156924712,
}


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((10,), 1e-5) * torch.linspace(0.5, 1.5, 10))

    def log_volume(self):
        return torch.log(torch.abs(torch.prod(self.scale)))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = Scaling()

    def forward(self, fixed):
        if fixed:
            return -torch.log(self.map.scale.abs()).sum() * 1e-3
        return -self.map.log_volume() * 1e-3


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
