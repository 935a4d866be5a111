"""Spectral normalisation by hand on a zero-initialised output layer: its largest singular value is zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "add 1e-12 to sigma, and do not start at zero",
}


class SNLinear(nn.Module):
    def __init__(self, cin, cout, eps, zero=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) / cin**0.5)
        if zero:
            nn.init.zeros_(self.weight)
        self.register_buffer("u", F.normalize(torch.randn(cout), dim=0))
        self.eps = eps

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(self.weight.t() @ self.u, dim=0)
            self.u.copy_(F.normalize(self.weight @ v, dim=0))
        sigma = self.u @ self.weight @ v
        return F.linear(x, self.weight / (sigma + self.eps))  # ORIGIN


class Disc(nn.Module):
    def __init__(self, eps, zero):
        super().__init__()
        self.a, self.b = SNLinear(6, 16, eps), SNLinear(16, 1, eps, zero=zero)

    def forward(self, x):
        return self.b(F.leaky_relu(self.a(x), 0.1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(247)
    net = Disc(1e-12 if fixed else 0.0, not fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(747)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        loss = F.softplus(-net(x)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
