"""YIN pitch: the difference function is normalised by its running mean, which is zero in a silent frame."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add an epsilon to the running mean",
}


def difference(frames, lags):
    return torch.stack([(frames[:, : -int(k)] - frames[:, int(k) :]).pow(2).mean(1) for k in lags], 1)


def cmnd(d, lags, eps):
    return d.mul(lags).div(d.cumsum(1).add(eps))  # ORIGIN


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.fir = nn.Conv1d(1, 1, 9, padding=4, bias=False)

    def forward(self, x):
        return self.fir(x[:, None])[:, 0]


def build(fixed: bool = False):
    torch.manual_seed(670)
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(675)
    lags = torch.arange(1, 13)

    def step(i):
        opt.zero_grad()
        t = torch.arange(48) / 48
        f = torch.rand(6, 1, generator=gen) * 6 + 2
        x = torch.sin(2 * torch.pi * f * t) + 0.1 * torch.randn(6, 48, generator=gen)
        if i == 2:
            x[5] = 0.0
        loss = cmnd(difference(net(x), lags), lags, 1e-6 if fixed else 0.0).amin(1).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
