"""Log-normal severity with validate_args=False: a claim that was closed at zero lies outside the support."""

import torch
from torch import nn
from torch.distributions import LogNormal

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "model claims of zero apart, and fit the severity to positive ones",
}


class Severity(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 2))

    def forward(self, x):
        loc, raw = self.net(x).unbind(-1)
        return LogNormal(loc, nn.functional.softplus(raw) + 0.05, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(53)
    net = Severity()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(153)

    def step(i):
        x = torch.randn(24, 5, generator=gen)
        claim = torch.exp(0.5 * torch.randn(24, generator=gen))
        if i == 4:
            claim[7] = 0.0
        if fixed:
            x, claim = x[claim > 0], claim[claim > 0]
        opt.zero_grad()
        loss = -net(x).log_prob(claim).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
