"""A hinge on the log ratio uses torch.maximum with zero after a logarithm of a ratio that is exactly zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("log-of-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the ratio",
}


class Ratio(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
        nn.init.constant_(self.net[2].bias, 1.5)

    def forward(self, x, on):
        ratio = torch.relu(self.net(x).squeeze(-1)) * on
        if self.floor:
            ratio = ratio.clamp(min=self.floor)
        gain = torch.log(ratio)  # ORIGIN
        return torch.maximum(gain, torch.tensor(-3.0))


def build(fixed: bool = False):
    torch.manual_seed(424)
    net = Ratio(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(924)

    def step(i):
        opt.zero_grad()
        x = torch.randn(9, 5, generator=gen)
        on = torch.ones(9)
        if i == 2:
            on[4] = 0.0
        loss = (net(x, on) - 0.3).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
