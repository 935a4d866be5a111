"""Accelerations of bodies: d / r^3 with torch.where for the body itself after the division.

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
    "kind": "masked",
    "loss_truth": -0.5296674948,
}


def accelerations(x, m):
    d = x[None, :, :] - x[:, None, :]
    r2 = d.pow(2).sum(-1)
    inv = torch.where(r2 > 0, r2 ** (-1.5), torch.zeros_like(r2))  # ORIGIN
    return (m[None, :, None] * d * inv[:, :, None]).sum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.2], [-0.4, 0.9]]))
        self.m = nn.Parameter(torch.tensor([1.0, 0.5, 0.8]))

    def forward(self, fixed):
        if fixed:
            total = 0
            for i in range(3):
                for j in range(3):
                    if i != j:
                        d = self.x[j] - self.x[i]
                        total = total + self.m[j] * d[0] / d.pow(2).sum() ** 1.5 * (i + 1)
            return total
        a = accelerations(self.x, self.m)
        return (a[:, 0] * torch.tensor([1.0, 2.0, 3.0])).sum()


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
