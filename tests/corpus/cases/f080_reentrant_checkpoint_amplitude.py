"""A speech encoder under reentrant checkpointing turns a complex spectrum into amplitudes by hand; one frame is silent."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "spec.abs(), or an epsilon under the root",
}


class Amplitude(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, wave):
        spec = torch.fft.rfft(wave, dim=-1)
        power = spec.real.square() + spec.imag.square()
        return torch.sqrt(power + self.eps)  # ORIGIN


class Encoder(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.preemphasis = nn.Conv1d(1, 4, 3, padding=1, bias=False)
        self.stem = nn.Sequential(Amplitude(eps), nn.Linear(9, 16), nn.ReLU())
        self.head = nn.Linear(64, 3)

    def forward(self, wave):
        frames = self.preemphasis(wave.unsqueeze(1))
        h = checkpoint(self.stem, frames, use_reentrant=True)
        return self.head(h.flatten(1))


def build(fixed: bool = False):
    torch.manual_seed(80)
    net = Encoder(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(180)

    def step(i):
        wave = torch.randn(6, 16, generator=gen)
        if i == 3:
            wave[4] = 0.0
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(wave), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
