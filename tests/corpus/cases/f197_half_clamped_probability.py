"""A half-precision detector clamps probabilities at 1e-8 before the logarithm; in half that bound is zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp at 1e-4",
}


class Det(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.low = low
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, bias):
        p = torch.sigmoid(self.net(x).squeeze(-1) + bias)
        p = torch.clamp(p, min=self.low)
        return torch.log(p)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(414)
    net = Det(1e-4 if fixed else 1e-8).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(914)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 6, generator=gen).half()
        bias = torch.zeros(6, dtype=torch.half)
        if i == 2:
            bias[3] = -30.0
        loss = -net(x, bias).float().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
