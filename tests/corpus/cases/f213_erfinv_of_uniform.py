"""Normal noise by inverse transform: erfinv(2u - 1) with u from [0, 1) meets u = 0."""

import torch
from torch import nn

META = {
    "origin_op": "erfinv",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp u to [1e-6, 1 - 1e-6]",
}


class Gen(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.low = low
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, u):
        z = torch.erfinv(2 * u.clamp(self.low, 1 - self.low) - 1) * 2**0.5  # ORIGIN
        return self.net(z)


def build(fixed: bool = False):
    torch.manual_seed(502)
    net = Gen(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1002)

    def step(i):
        opt.zero_grad()
        u = torch.rand(8, 4, generator=gen).clamp(0.01, 0.99)
        if i == 2:
            u[1, 1] = 0.0
        loss = (net(u) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
