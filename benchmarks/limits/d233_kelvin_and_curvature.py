"""ln(1 + k r) / (k r) on one line and (1 - exp(-k r)) / (k r) on the next, flat interface k = 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 4.862827422,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.8]))
        self.r = nn.Parameter(torch.tensor([1.0, 1.3]))

    def forward(self, fixed):
        z = self.k * self.r
        if fixed:
            near = z.abs() < 1e-3
            s = torch.where(near, torch.ones_like(z), z)
            p = torch.where(near, 1 - z / 2 + z**2 / 3, torch.log1p(s) / s)
            q = torch.where(near, 1 - z / 2 + z**2 / 6, -torch.expm1(-s) / s)
        else:
            p = torch.log(1 + z) / z  # ORIGIN
            q = (1 - torch.exp(-z)) / z  # ORIGIN
        return (p + 2 * q - 1).square().sum()


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
