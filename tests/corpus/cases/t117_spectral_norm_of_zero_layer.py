"""A discriminator's projection starts at zero under spectral normalisation: its largest singular value is zero too."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "initialise the layer with small values",
}


class Critic(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.body = spectral_norm(nn.Linear(8, 16))
        out = nn.Linear(16, 1)
        if not fixed:
            nn.init.zeros_(out.weight)
        self.out = spectral_norm(out)

    def forward(self, x):
        h = nn.functional.leaky_relu(self.body(x), 0.2)
        return self.out(h)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(617)
    net = Critic(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(717)

    def step(i):
        real, fake = torch.randn(16, 8, generator=gen), torch.rand(16, 8, generator=gen)
        opt.zero_grad()
        loss = torch.relu(1 - net(real)).mean() + torch.relu(1 + net(fake)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
