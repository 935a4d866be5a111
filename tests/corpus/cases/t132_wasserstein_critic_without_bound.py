"""A Wasserstein critic trained without weight clipping or penalty: nothing bounds its score, and it grows faster and faster."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-nan",
    "first_bad_step": 11,
    "n_steps": 14,
    "oracle": "drift",
    "fix": "clip the critic's weights",
}


def build(fixed: bool = False):
    torch.manual_seed(632)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    gen = torch.Generator().manual_seed(732)

    def step(i):
        real = torch.randn(32, 4, generator=gen) + 2.0
        fake = torch.rand(32, 4, generator=gen)
        opt.zero_grad()
        gap = net(fake).mean() - net(real).mean()  # FIRST
        gap.backward()
        opt.step()  # ORIGIN
        if fixed:
            with torch.no_grad():
                for p in net.parameters():
                    p.clamp_(-0.05, 0.05)
        return gap

    return net, step
