"""A keyword spotter takes the log of a mel spectrum computed from an STFT; a clip that is cut to digital silence has energy zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the mel energies to 1e-10 before the logarithm",
}


class LogMel(nn.Module):
    def __init__(self, floor, bands=12):
        super().__init__()
        self.floor = floor
        edges = torch.linspace(0, 33, bands + 2)
        freq = torch.arange(33.0)
        up = (freq - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        down = (edges[2:, None] - freq) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(up, down).clamp(min=0))
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, wave):
        spec = torch.stft(wave, 64, hop_length=32, window=self.window, return_complex=True)
        power = spec.real**2 + spec.imag**2
        mel = self.bank @ power
        if self.floor:
            mel = mel.clamp_min(self.floor)
        logmel = torch.log(mel)  # ORIGIN
        return (logmel - logmel.mean((1, 2), keepdim=True)) / 4.0


class Spotter(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.front = LogMel(floor)
        self.conv = nn.Sequential(nn.Conv1d(12, 24, 3, padding=1), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, wave):
        return self.head(self.conv(self.front(wave)).mean(-1))


def build(fixed: bool = False):
    torch.manual_seed(202)
    net = Spotter(1e-10 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(702)

    def step(i):
        opt.zero_grad()
        wave = torch.randn(6, 512, generator=gen) * 0.1
        if i == 2:
            wave[4, 200:] = 0.0
        y = torch.randint(0, 4, (6,), generator=gen)
        loss = F.cross_entropy(net(wave), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
