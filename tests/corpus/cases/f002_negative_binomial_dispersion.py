"""Negative binomial likelihood of gene counts: a gene's dispersion goes through a ReLU and reaches zero, the pole of lgamma."""

import torch
from torch import nn

META = {
    "origin_op": "lgamma",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "softplus plus a floor for the dispersion",
}


class CountDecoder(nn.Module):
    def __init__(self, genes, floor):
        super().__init__()
        self.floor = floor
        self.enc = nn.Sequential(nn.Linear(genes, 24), nn.ReLU(), nn.Linear(24, 6))
        self.dec = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, genes))
        self.dispersion = nn.Parameter(torch.full((genes,), 0.06))

    def forward(self, counts):
        z = self.enc(torch.log1p(counts))
        mean = nn.functional.softplus(self.dec(z)) + 1e-3
        return mean, torch.relu(self.dispersion) + self.floor


def nb_log_prob(y, mean, r):
    combine = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)  # ORIGIN
    return combine + r * (torch.log(r + 1e-8) - torch.log(r + mean)) + y * (torch.log(mean) - torch.log(r + mean))


def build(fixed: bool = False):
    torch.manual_seed(2)
    net = CountDecoder(10, 1e-3 if fixed else 0.0)
    opt = torch.optim.Adam([{"params": [net.dispersion], "lr": 0.022}, {"params": net.enc.parameters()}], lr=1e-3)
    gen = torch.Generator().manual_seed(102)

    def step(i):
        counts = torch.poisson(torch.rand(16, 10, generator=gen) * 0.5, generator=gen)
        counts[:, 4] = 0.0  # a gene that is never expressed
        counts[0, 5] = 30.0
        opt.zero_grad()
        mean, r = net(counts)
        loss = -nb_log_prob(counts, mean, r).mean() + 0.5 * r.sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
