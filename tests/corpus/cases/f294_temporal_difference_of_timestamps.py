"""A decay exp(-dt / tau) with dt of out-of-order events: negative and huge."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "sort the events",
}


class TimeDecayGRU(nn.Module):
    def __init__(self, ordered):
        super().__init__()
        self.cell, self.out = nn.GRUCell(2, 6), nn.Linear(6, 1)
        self.log_tau, self.ordered = nn.Parameter(torch.zeros(6)), ordered

    def forward(self, x, t):
        h = x.new_zeros(len(x), 6)
        for k in range(x.shape[1]):
            dt = t[:, k] - t[:, k - 1] if k else torch.zeros(len(x))
            dt = dt.clamp(min=0) if self.ordered else dt
            h = self.cell(x[:, k], h * torch.exp(-dt[:, None] / self.log_tau.exp()))  # ORIGIN
        return self.out(h).squeeze(1)


def build(fixed: bool = False):
    torch.manual_seed(2628)
    net = TimeDecayGRU(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2633)

    def step(i):
        opt.zero_grad()
        t = torch.rand(4, 5, generator=gen).cumsum(1)
        if i == 2:
            t[2, 3] = -150.0
        loss = net(torch.randn(4, 5, 2, generator=gen), t).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
