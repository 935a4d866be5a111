"""A log-spaced time embedding takes t ** -0.5 of an event at the origin of time."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-fraction-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "t + 1",
}


class Hawkes(nn.Module):
    def __init__(self, plus):
        super().__init__()
        self.plus = plus
        self.lin = nn.Linear(3, 1)

    def forward(self, t):
        t = t + self.plus
        feats = torch.stack([t, t.pow(-0.5), t.cos()], -1)  # ORIGIN
        return self.lin(feats).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(514)
    net = Hawkes(1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1014)

    def step(i):
        opt.zero_grad()
        t = torch.rand(9, generator=gen) + 0.5
        if i == 2:
            t[0] = 0.0
        loss = F.softplus(net(t)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
