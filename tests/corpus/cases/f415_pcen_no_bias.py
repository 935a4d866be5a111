"""Per-channel energy normalisation with delta = 0: the root compression has an infinite slope on silent frames."""

from dataclasses import dataclass

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "delta above zero",
}


@dataclass(frozen=True)
class PcenConfig:
    alpha: float = 0.9
    delta: float = 0.0
    r: float = 0.5
    s: float = 0.2
    eps: float = 1e-6


class Pcen(nn.Module):
    def __init__(self, bands, cfg):
        super().__init__()
        self.cfg = cfg
        self.log_gain = nn.Parameter(torch.zeros(bands))

    def forward(self, energy):
        c = self.cfg
        energy = energy * self.log_gain.exp()
        smooth, rows = energy[:, 0], []
        for frame in energy.unbind(1):
            smooth = torch.lerp(smooth, frame, c.s)
            rows.append(smooth)
        m = torch.stack(rows, 1)
        return (energy / (c.eps + m) ** c.alpha + c.delta) ** c.r - c.delta**c.r  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(31)
    net = nn.Sequential(Pcen(6, PcenConfig(delta=2.0 if fixed else 0.0)), nn.Flatten(), nn.Linear(48, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(32)

    def step(i):
        e = torch.rand(4, 8, 6, generator=gen) + 0.01
        if i >= 2:
            e[1, 5:] = 0
        loss = nn.functional.cross_entropy(net(e), torch.randint(0, 3, (4,), generator=gen))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
