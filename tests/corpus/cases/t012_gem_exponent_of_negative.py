"""GeM pooling with a learned exponent behind a leaky activation: at p = 3 the value is finite, but the gradient of p takes a log of a negative."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "also_ops": ("log",),
    "phase": "backward",
    "cause": "pow-negative-base",
    "also_causes": ("log-of-negative",),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "clamp the features from below before the power",
}


class GeM(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.p = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        if self.floor is not None:
            x = x.clamp_min(self.floor)
        mean = x.pow(self.p).mean((2, 3))  # ORIGIN
        return mean.clamp_min(1e-6).pow(1.0 / self.p)


def build(fixed: bool = False):
    torch.manual_seed(412)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.LeakyReLU(0.1),
        GeM(1e-4 if fixed else None),
        nn.Linear(12, 3),
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(512)

    def step(i):
        x = torch.rand(6, 1, 10, 10, generator=gen)
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
