"""Discrete codes by Gumbel-softmax; the temperature is annealed linearly and arrives at exactly zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "end the schedule at 0.1",
}


class Codes(nn.Module):
    def __init__(self, width=10, codes=6):
        super().__init__()
        self.enc = nn.Linear(width, codes)
        self.dec = nn.Linear(codes, width)

    def forward(self, x, tau):
        z = nn.functional.gumbel_softmax(self.enc(x), tau=tau)  # ORIGIN
        return self.dec(z)


def build(fixed: bool = False):
    torch.manual_seed(601)
    net = Codes()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(701)

    def step(i):
        x = torch.randn(16, 10, generator=gen)
        tau = max(1.0 - i / 5, 0.1 if fixed else 0.0)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x, tau), x)
        loss.backward()
        opt.step()
        return loss

    return net, step
