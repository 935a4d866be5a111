"""Opening rate of a potassium gate, a (V + 55) / (1 - exp(-(V + 55) / 10)): a neuron sits at
exactly -55 mV.

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
    "loss_truth": 0.05160977792,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([-65.0, -55.0, -40.0]))
        self.a = nn.Parameter(torch.tensor(0.01))

    def forward(self, fixed):
        u = self.v + 55.0
        if fixed:
            near = u.abs() < 1e-3
            w = torch.where(near, torch.ones_like(u), u)
            rate = self.a * torch.where(near, 10 + u / 2 + u**2 / 120, w / -torch.expm1(-w / 10))
        else:
            rate = self.a * u / (1 - torch.exp(-u / 10))  # ORIGIN
        n = rate / (rate + 0.125)
        return (n - 0.4).pow(2).sum()


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
