"""Affine coupling flow with the scale sigmoid(h + 2), as in Glow: the log of the determinant is
the sum of log(scale), and h is -150 for one point.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 8069.2485065778,
}


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 2)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        shift, h = self.net(a).chunk(2, dim=1)
        scale = torch.sigmoid(h + 2.0)
        y = scale * b + shift
        logdet = torch.log(scale).sum(dim=1)  # ORIGIN
        return torch.cat([a, y], dim=1), logdet


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = Coupling()

    def forward(self, fixed):
        x = torch.tensor([[0.5, -0.2], [2.0, 0.7], [-3.0, 0.4]])
        if fixed:
            a, b = x.chunk(2, dim=1)
            shift, h = self.flow.net(a).chunk(2, dim=1)
            z = torch.cat([a, torch.sigmoid(h + 2.0) * b + shift], dim=1)
            logdet = nn.functional.logsigmoid(h + 2.0).sum(dim=1)
        else:
            z, logdet = self.flow(x)
        return (0.5 * (z**2).sum(1) - logdet).mean()


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(150 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
    return {name: p.grad for name, p in net.named_parameters()}
