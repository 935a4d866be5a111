"""An uncertainty head returns the standard deviation of its samples, root of the variance by hand; with a collapsed sampler it is zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "1e-8 under the root",
}


class Unc(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.net = nn.Linear(4, 3)

    def forward(self, x, noise):
        draws = torch.stack([self.net(x) + n * self.net(x).abs() for n in noise])
        mean = draws.mean(0)
        dev = (draws - mean).pow(2).mean(0)
        return mean, torch.sqrt(dev + self.eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(505)
    net = Unc(1e-8 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1005)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        noise = torch.randn(4, generator=gen)
        if i == 2:
            noise.zero_()
        mean, dev = net(x, noise)
        loss = (mean - 1).square().mean() + 0.1 * dev.mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
