"""Standardising by E[x^2] - E[x]^2: with a large offset the difference cancels to a negative variance."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "subtract the mean first: (x - mean)^2",
}


class RunningScale(nn.Module):
    """Standardise each series by its own mean and one-pass standard deviation."""

    def __init__(self, two_pass):
        super().__init__()
        self.two_pass = two_pass
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        if self.two_pass:
            var = (x - mean).square().mean(-1, keepdim=True)
        else:
            var = x.square().mean(-1, keepdim=True) - mean.square()
        std = torch.sqrt(var + 1e-6)  # ORIGIN
        return self.gain * (x - mean) / std


def build(fixed: bool = False):
    torch.manual_seed(17)
    net = nn.Sequential(
        RunningScale(fixed), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 4)
    )
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(117)

    def step(i):
        x = torch.randn(16, 20, generator=gen).cumsum(1)
        if i == 4:
            x[9:13] = 1013.25 + 1e-3 * x[9:13]  # pressure in hPa instead of anomalies
        past, future = x[:, :16], x[:, 16:]
        opt.zero_grad()
        scaled = (future - past.mean(1, keepdim=True)) / (past.std(1, keepdim=True) + 0.1)
        loss = nn.functional.smooth_l1_loss(net(past), scaled)
        loss.backward()
        opt.step()
        return loss

    return net, step
