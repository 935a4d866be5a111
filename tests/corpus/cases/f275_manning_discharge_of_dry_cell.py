"""Manning's formula raises the water depth to 5/3; the surrogate's depth went below the bed."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-negative-base",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "keep the depth positive",
}


class Surrogate(nn.Module):
    def __init__(self, wet):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
        self.roughness = nn.Parameter(torch.tensor(0.03))
        self.wet = wet

    def depth(self, xt, bed):
        h = 2.0 + self.net(xt).squeeze(-1) - bed
        return h.clamp(min=1e-3) if self.wet else h

    def forward(self, xt, bed, slope=1e-3):
        return (slope**0.5 / self.roughness.abs().clamp(min=1e-3)) * self.depth(xt, bed) ** (5 / 3)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(963)
    net = Surrogate(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(968)

    def step(i):
        opt.zero_grad()
        xt = torch.rand(24, 2, generator=gen)
        bed = 0.2 * torch.rand(24, generator=gen)
        if i == 2:
            bed[20:] += 3.0
        loss = (net(xt, bed) - 3.0).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
