"""Covariance of slopes of a Matern-5/2 process as the mixed second derivative of its kernel, by grad of grad under vmap: on the diagonal the distance is sqrt(0), the covariance 5 / (3 l^2).

Source: Gaussian processes with derivative observations, kernel fitted to the empirical covariance
"""
import math

import torch
from torch import nn
from torch.func import grad, vmap

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.1279753451,
    "fix": "the series 1 - q / 6 + q^2 / 24 in the squared distance q",
}

SITES = [0.0, 0.7, 1.9]
EMPIRICAL = [[1.5, 0.2, -0.1], [0.2, 1.2, 0.1], [-0.1, 0.1, 1.7]]


def matern(x, y, length, scale):
    u = torch.sqrt(5 * ((x - y) / length) ** 2)  # ORIGIN
    return scale**2 * (1 + u + u**2 / 3) * torch.exp(-u)


def matern_series(x, y, length, scale):
    q = 5 * ((x - y) / length) ** 2
    near = q < 1e-6
    u = torch.sqrt(torch.where(near, torch.ones_like(q), q))
    return scale**2 * torch.where(near, 1 - q / 6 + q**2 / 24, (1 + u + u**2 / 3) * torch.exp(-u))


class Slopes(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.length = nn.Parameter(torch.tensor(1.2))
        self.scale = nn.Parameter(torch.tensor(0.9))
        self.kernel = kernel

    def forward(self, sites):
        mixed = grad(grad(self.kernel, argnums=0), argnums=1)
        over = vmap(vmap(mixed, in_dims=(None, 0, None, None)), in_dims=(0, None, None, None))
        return over(sites, sites, self.length, self.scale)


def build(fixed: bool = False):
    net = Slopes(matern_series if fixed else matern)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    sites, empirical = torch.tensor(SITES), torch.tensor(EMPIRICAL)

    def step(i):
        opt.zero_grad()
        loss = (net(sites) - empirical).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def analysis():
    """5 s^2 / (3 l^2) (1 + u - u^2) exp(-u), u = sqrt(5) |x - y| / l"""
    length, scale, loss, gl, gs = 1.2, 0.9, 0.0, 0.0, 0.0
    for i, x in enumerate(SITES):
        for j, y in enumerate(SITES):
            u = math.sqrt(5) * abs(x - y) / length
            front, e = 5 * scale**2 / (3 * length**2), math.exp(-u)
            value = front * (1 + u - u * u) * e
            left = (value - EMPIRICAL[i][j]) / 9
            loss += left * left * 9
            by_u = front * (u * u - 3 * u) * e
            gl += 2 * left * (-2 * value / length - by_u * u / length)
            gs += 2 * left * 2 * value / scale
    return loss, {"length": torch.tensor(gl, dtype=torch.float64), "scale": torch.tensor(gs, dtype=torch.float64)}


def truth():
    return analysis()[1]
