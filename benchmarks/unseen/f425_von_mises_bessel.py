"""Von Mises head: the log of the Bessel function by hand, and I0 of a large concentration overflows."""
import math

import torch
from torch import nn

META = {
    "origin_op": "i0", "also_ops": ["special_i0"], "phase": "forward", "cause": "exp-overflow", "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 4, "fix": "log(i0e(k)) + k",
}


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 12), nn.Tanh())
        self.loc, self.kappa = nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(self, x, precision):
        h = self.body(x)
        return self.loc(h).squeeze(-1), nn.functional.softplus(self.kappa(h)).squeeze(-1) * precision


def von_mises_nll(angle, loc, kappa, scaled):
    if scaled:
        log_i0 = torch.special.i0e(kappa).log() + kappa
    else:
        log_i0 = torch.i0(kappa).log()  # ORIGIN
    return math.log(2 * math.pi) + log_i0 - kappa * torch.cos(angle - loc)


def build(fixed=False):
    torch.manual_seed(51)
    net = Heading()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(52)

    def step(i):
        x = torch.randn(8, 3, generator=gen)
        angle = (torch.rand(8, generator=gen) * 2 - 1) * math.pi
        precision = torch.ones(8)
        if i >= 2:
            precision[0] = 500.0  # a sensor of a better class
        loc, kappa = net(x, precision)
        loss = von_mises_nll(angle, loc, kappa, fixed).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
