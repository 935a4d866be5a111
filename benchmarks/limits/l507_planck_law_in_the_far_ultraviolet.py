"""Planck's law x^3 / (exp(x) - 1) at x = 120, where it is 0 and flat.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.000938988,
}


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([1.0, 20.0]))

    def radiance(self, nu):
        x = nu / self.temperature
        return x**3 / (x.exp() - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Spectrum()

    def forward(self, fixed):
        nu = torch.tensor([120.0, 30.0])
        if fixed:
            x = nu / self.body.temperature
            seen = x**3 * torch.exp(-x) / (1 - torch.exp(-x))
        else:
            seen = self.body.radiance(nu)
        return (seen - 1.0).pow(2).sum()


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
