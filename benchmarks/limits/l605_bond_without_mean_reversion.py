"""Vasicek's zero-coupon price with a speed of reversion that starts at 0; three quotients by it,
one inside the other.

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
    "loss_truth": 0.02510768229,
}


def vasicek(a, b, sigma, tau, r):
    B = (1 - torch.exp(-a * tau)) / a  # ORIGIN
    A = (b - sigma**2 / (2 * a**2)) * (B - tau) - sigma**2 * B**2 / (4 * a)
    return A - B * r


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.0))
        self.sigma = nn.Parameter(torch.tensor(0.1))

    def forward(self, fixed):
        tau = torch.tensor([0.5, 2.0, 5.0])
        r = 0.03
        a, b, s = self.a, 0.04, self.sigma
        if fixed:
            B = tau - a * tau**2 / 2
            price = -r * B - a * b * tau**2 / 2 + s**2 * (tau**3 / 6 - a * tau**4 / 8)
        else:
            price = vasicek(a, b, s, tau, r)
        return (price - torch.tensor([-0.02, -0.05, -0.1])).pow(2).sum()


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
