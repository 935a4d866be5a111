"""Gaussian mixture fitted by gradient descent with the densities themselves: an outlier 30 sigmas away has density 0.

Source: well-known fault (mixture likelihood without logsumexp)
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
    "loss_truth": 173.1691001,
    "fix": "logsumexp of the log densities",
}


class GMM(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([[0.0, 0.0], [2.0, 1.0]]))
        self.log_sigma = nn.Parameter(torch.tensor([0.0, -0.2]))
        self.weight = nn.Parameter(torch.tensor([0.3, -0.1]))

    def log_prob(self, x, fixed):
        pi = self.weight.softmax(0)
        var = torch.exp(2 * self.log_sigma)
        diff = x[:, None, :] - self.mu
        maha = torch.einsum("nkd,nkd->nk", diff, diff) / var
        if fixed:
            return torch.logsumexp(pi.log() - maha / 2 - torch.log(2 * math.pi * var), 1)
        density = torch.exp(-0.5 * maha) / (2 * math.pi * var)
        return torch.log(density @ pi)  # ORIGIN


POINTS = [[0.3, -0.2], [1.8, 1.1], [25.0, 20.0]]


def build(fixed: bool = False):
    gmm = GMM()
    opt = torch.optim.Adam(gmm.parameters(), lr=1e-3)
    x = torch.tensor(POINTS)

    def step(i):
        opt.zero_grad()
        loss = -gmm.log_prob(x, fixed).mean()
        loss.backward()
        opt.step()
        return loss

    return gmm, step


def truth():
    # by responsibilities
    f8 = torch.float64
    x, mu = torch.tensor(POINTS, dtype=f8), torch.tensor([[0.0, 0.0], [2.0, 1.0]], dtype=f8)
    ls, pi = torch.tensor([0.0, -0.2], dtype=f8), torch.tensor([0.3, -0.1], dtype=f8).softmax(0)
    var = torch.exp(2 * ls)
    diff = x[:, None] - mu
    sq = diff.pow(2).sum(-1)
    r = (pi.log() - sq / var / 2 - 2 * ls).softmax(1)
    gmu = -(r[..., None] * diff / var[:, None]).mean(0)
    return {"mu": gmu, "log_sigma": -(r * (sq / var - 2)).mean(0), "weight": pi - r.mean(0)}
