"""Mixture density network with diagonal normals: the densities of the dimensions are multiplied,
weighted and added, and the log taken, for a target far from all components.

Source: well-known fault
"""

import math

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
    "loss_truth": 97.6764907718,
}


class MixtureDensity(nn.Module):
    def __init__(self, n_in, n_out, n_mix):
        super().__init__()
        self.n_out, self.n_mix = n_out, n_mix
        self.pi = nn.Linear(n_in, n_mix)
        self.mu = nn.Linear(n_in, n_mix * n_out)
        self.sigma = nn.Linear(n_in, n_mix * n_out)

    def forward(self, x):
        pi = torch.softmax(self.pi(x), dim=1)
        mu = self.mu(x).view(-1, self.n_mix, self.n_out)
        sigma = torch.exp(self.sigma(x)).view(-1, self.n_mix, self.n_out)
        return pi, mu, sigma


def mdn_loss(pi, mu, sigma, target):
    target = target.unsqueeze(1).expand_as(mu)
    normal = torch.exp(-0.5 * ((target - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    density = torch.prod(normal, dim=2)
    return -torch.log(torch.sum(pi * density, dim=1)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = MixtureDensity(2, 3, 2)

    def forward(self, fixed):
        x = torch.tensor([[0.3, -0.5], [1.0, 0.8]])
        y = torch.tensor([[0.1, 0.5, -0.2], [14.0, -11.0, 9.0]])
        if fixed:
            log_pi = torch.log_softmax(self.head.pi(x), 1)
            mu = self.head.mu(x).view(-1, 2, 3)
            log_sigma = self.head.sigma(x).view(-1, 2, 3)
            z = (y[:, None] - mu) / log_sigma.exp()
            logs = (-0.5 * z**2 - log_sigma - 0.5 * math.log(2 * math.pi)).sum(2)
            return -torch.logsumexp(log_pi + logs, 1).mean()
        return mdn_loss(*self.head(x), y)


def build(fixed: bool = False):
    net = Net()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(0.3 * torch.sin(torch.arange(p.numel()) + k).view_as(p))
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
