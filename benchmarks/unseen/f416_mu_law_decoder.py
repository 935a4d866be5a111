"""A mu-law expander applied to an unbounded output: expm1 overflows when one sample is an outlier."""
import math
from dataclasses import dataclass

import torch
from torch import nn

META = {
    "origin_op": "expm1", "phase": "forward", "cause": "exp-overflow", "symptom": "loss-inf",
    "first_bad_step": 3, "n_steps": 5, "fix": "tanh before the expander",
}


@dataclass
class MuLaw:
    mu: int = 255

    def decode(self, y):
        return torch.sign(y) * torch.expm1(y.abs() * math.log1p(self.mu)) / self.mu  # ORIGIN

    def encode(self, x):
        return torch.sign(x) * torch.log1p(self.mu * x.abs()) / math.log1p(self.mu)


class Vocoder(nn.Module):
    def __init__(self, bounded):
        super().__init__()
        self.bounded, self.codec = bounded, MuLaw()
        self.body = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 1, 5, padding=2))

    def forward(self, mel):
        y = 0.2 * self.body(mel)
        if self.bounded:
            y = torch.tanh(y)
        return self.codec.decode(y)


def build(fixed=False):
    torch.manual_seed(33)
    net = Vocoder(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(34)

    def step(i):
        mel = torch.randn(3, 1, 30, generator=gen)
        if i == 3:
            mel[0, 0, 7] = 2.5e3  # a click in the recording
        target = 0.1 * torch.randn(3, 1, 30, generator=gen)
        loss = nn.functional.l1_loss(net(mel), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
