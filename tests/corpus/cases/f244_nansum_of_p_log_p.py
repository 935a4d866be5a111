"""A marginal entropy by nansum(p * log p) skips the NaN of empty bins going forward only."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "also_ops": ("mul",),
    "phase": "backward",
    "cause": "repair-forward-only",
    "also_causes": ("log-of-zero", "where-grad-trap", "zero-times-inf"),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add an epsilon inside the logarithm",
}


class SoftAssign(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.centres, self.floor = nn.Parameter(torch.linspace(-1, 1, 5)), floor

    def forward(self, x):
        p = F.relu(1 - 2 * (x[:, None] - self.centres).abs()).mean(0)
        p = p / p.sum()
        return -torch.nansum(p * (p + self.floor).log())  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1405)
    net = SoftAssign(1e-8 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1410)

    def step(i):
        opt.zero_grad()
        x = torch.rand(64, generator=gen) * 2 - 1
        if i == 2:
            x = x.clamp(max=0.2)
        loss = (net(x) - 1.0) ** 2 + (net.centres.square().mean() - 0.5) ** 2
        loss.backward()
        opt.step()
        return loss

    return net, step
