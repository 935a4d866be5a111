"""Effectiveness factor of a catalyst sphere, 3 / phi^2 (phi / tanh(phi) - 1), whose Thiele modulus
is 0 in one zone.

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
    "loss_truth": 0.1119395401,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.tensor([0.0, 0.8, 3.0]))

    def forward(self, fixed):
        phi = self.phi
        if fixed:
            near = phi.abs() < 1e-3
            w = torch.where(near, torch.ones_like(phi), phi)
            eta = torch.where(near, 1 - phi**2 / 15, 3 / w**2 * (w / torch.tanh(w) - 1))
        else:
            eta = 3 / phi**2 * (phi / torch.tanh(phi) - 1)  # ORIGIN
        rate = eta * torch.tensor([1.0, 2.0, 0.5])
        return F.mse_loss(rate, torch.tensor([0.7, 1.5, 0.6]))


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
