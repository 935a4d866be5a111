"""A robust likelihood writes the Student-t normaliser by lgamma of a learned degree of freedom that a ReLU has cut to zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "lgamma",
    "also_ops": ("log",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("inf-minus-inf",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "softplus plus one",
}


class StudentT(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x, shift):
        mu, raw = self.net(x).unbind(-1)
        raw = raw + shift
        return mu, F.softplus(raw) + 1.0 if self.safe else F.relu(raw)


def nll(mu, nu, y):
    norm = torch.lgamma(nu / 2) - torch.lgamma((nu + 1) / 2)  # ORIGIN
    return (norm + 0.5 * (nu + 1) * torch.log1p((y - mu) ** 2 / 4)).mean()


def build(fixed: bool = False):
    torch.manual_seed(256)
    net = StudentT(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(756)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 4, generator=gen)
        shift = torch.full((12,), 4.0)
        if i == 2:
            shift[7] = -6.0
        mu, nu = net(x, shift)
        loss = nll(mu, nu, x.sum(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
