"""Forecast targets are the series shifted by one; the last row of the window has no successor and is NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "l1_loss",
    "also_ops": ("sub", "mse_loss", "huber_loss", "smooth_l1_loss", "abs"),
    "phase": "data",
    "cause": "nan-in-target",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "leave out the last row",
}


class Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 12, batch_first=True)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).squeeze(-1)


def windows(gen):
    series = torch.randn(40, 2, generator=gen).cumsum(0) / 5
    shifted = torch.roll(series[:, 0], -1)
    shifted[-1] = float("nan")  # DATA
    return series, shifted


def build(fixed: bool = False):
    torch.manual_seed(315)
    net = Seq()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(815)
    series, target = windows(gen)

    def step(i):
        opt.zero_grad()
        rows = slice(10 * i, 10 * i + 10)
        if i > 3:
            rows = slice(30, 40)
        x, y = series[rows], target[rows]
        pred = net(x[None])[0]
        if fixed:
            pred, y = pred[:9], y[:9]
        loss = F.huber_loss(pred, y)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
