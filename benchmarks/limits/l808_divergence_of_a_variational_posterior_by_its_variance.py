"""Divergence of a variational posterior from its prior by sigma: log(sigma^2) with sigma =
exp(logvar / 2) and a log variance of -210.

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
    "loss_truth": 104.8539397,
}


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.3, -0.5]))
        self.logvar = nn.Parameter(torch.tensor([-1.0, -210.0]))

    def kl(self):
        sigma = torch.exp(0.5 * self.logvar)
        return -0.5 * (1 + torch.log(sigma.pow(2)) - self.mu.pow(2) - sigma.pow(2)).sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.vae = VAE()

    def forward(self, fixed):
        if fixed:
            mu, logvar = self.vae.mu, self.vae.logvar
            return -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
        return self.vae.kl()


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
