"""Rician log-likelihood with i0(x v / s^2), which is infinite for a bright pixel.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "i0",
    "phase": "forward",
    "cause": "i0",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.03521975,
}


def rice(x, nu, sigma):
    density = (
        x / sigma**2 * torch.exp(-(x**2 + nu**2) / (2 * sigma**2)) * torch.i0(x * nu / sigma**2)
    )
    return torch.log(density)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.nu = nn.Parameter(torch.tensor([1.0, 12.0, 3.0]))
        self.sigma = nn.Parameter(torch.tensor(0.8))

    def forward(self, fixed):
        x = torch.tensor([1.5, 11.0, 2.5])
        nu, s = self.nu, self.sigma
        if fixed:
            z = x * nu / s**2
            ll = torch.log(x / s**2) - (x - nu) ** 2 / (2 * s**2) + torch.log(torch.special.i0e(z))
        else:
            ll = rice(x, nu, s)
        return -ll.mean()


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
