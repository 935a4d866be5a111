"""Phase and group speed of water waves, the wave number of one component being 0: quotients on
neighbouring lines.

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
    "loss_truth": 9.74208619,
}


def speeds(k, depth):
    phase = torch.sqrt(9.81 * torch.tanh(k * depth) / k)  # ORIGIN
    ratio = 2 * k * depth / torch.sinh(2 * k * depth)
    return phase, phase / 2 * (1 + ratio)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.3, 1.2]))
        self.depth = nn.Parameter(torch.tensor(2.0))

    def forward(self, fixed):
        if fixed:
            x = self.k * self.depth
            near = x.abs() < 1e-4
            w = torch.where(near, torch.ones_like(x), x)
            a = torch.where(near, 1 - x**2 / 3, torch.tanh(w) / w)
            b = torch.where(near, 1 - 2 * x**2 / 3, 2 * w / torch.sinh(2 * w))
            c = torch.sqrt(9.81 * self.depth * a)
            g = c / 2 * (1 + b)
        else:
            c, g = speeds(self.k, self.depth)
        return ((c - 3.0).pow(2) + (g - 2.5).pow(2)).sum()


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
