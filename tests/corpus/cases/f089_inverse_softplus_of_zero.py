"""Scales are stored as softplus-inverse parameters; refreshing them from a batch statistic of zero takes log(expm1(0))."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "a floor under the statistic",
}


class ScaleNet(nn.Module):
    """Matches the unconstrained scale of each window."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 3), nn.SiLU(), nn.Conv1d(8, 8, 3), nn.SiLU())
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.conv(x.unsqueeze(1)).mean(-1)).squeeze(-1)


def inverse_softplus(y):
    return torch.log(torch.expm1(y))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(89)
    net = ScaleNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(189)
    floor = 1e-4 if fixed else 0.0

    def step(i):
        x = torch.randn(10, 16, generator=gen)
        if i == 4:
            x[7] = 2.5  # the meter was stuck
        spread = (x.amax(1) - x.amin(1)).clamp_min(floor)
        opt.zero_grad()
        loss = nn.functional.l1_loss(net(x), inverse_softplus(spread))
        loss.backward()
        opt.step()
        return loss

    return net, step
