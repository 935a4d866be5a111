"""Denoising score matching, sigma^2 |s + (x~ - x) / sigma^2|^2, with learned noise levels of which the first starts at 0: |z|^2 there, slope 2 z s.

Source: score-based generative models with a learned noise schedule
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
    "loss_truth": 0.455425,
    "fix": "(sigma s + z)^2",
}

DATA = [0.5, -1.2, 0.9, 1.6]
NOISE = [0.7, -0.4, 1.3, -1.1]
LEVEL = [0, 1, 2, 0]


def weighted(score, x, noisy, sigma, z):
    target = -(noisy - x) / sigma**2  # ORIGIN
    return sigma**2 * (score - target) ** 2


def multiplied_out(score, x, noisy, sigma, z):
    return (sigma * score + z) ** 2


class Score(nn.Module):
    def __init__(self, objective):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor([0.0, 0.5, 1.0]))
        self.slope = nn.Parameter(torch.tensor(-0.8))
        self.shift = nn.Parameter(torch.tensor(0.3))
        self.objective = objective

    def forward(self, x, z, level):
        sigma = self.sigma.index_select(0, level)
        noisy = x + sigma * z
        return self.objective(self.slope * noisy + self.shift, x, noisy, sigma=sigma, z=z)


def build(fixed: bool = False):
    net = Score(multiplied_out if fixed else weighted)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, z, level = torch.tensor(DATA), torch.tensor(NOISE), torch.tensor(LEVEL)

    def step(i):
        opt.zero_grad()
        loss = net(x, z, level).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def analysis():
    a, b, loss, gs, ga, gb = -0.8, 0.3, 0.0, [0.0, 0.0, 0.0], 0.0, 0.0
    for x, z, k in zip(DATA, NOISE, LEVEL):
        sigma = [0.0, 0.5, 1.0][k]
        noisy = x + sigma * z
        s = a * noisy + b
        r = sigma * s + z
        loss += r * r / 4
        gs[k] += r / 2 * (s + sigma * a * z)
        ga += r / 2 * sigma * noisy
        gb += r / 2 * sigma
    return loss, {"sigma": torch.tensor(gs, dtype=torch.float64), "slope": torch.tensor(ga, dtype=torch.float64), "shift": torch.tensor(gb, dtype=torch.float64)}


def truth():
    return analysis()[1]
