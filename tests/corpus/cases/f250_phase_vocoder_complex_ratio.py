"""Phase advance of a spectrogram as the ratio of neighbouring complex frames; after a gap a frame is exactly zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "multiply by the conjugate and divide by the power plus an epsilon",
}


class Vocoder(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(17))
        self.shift = nn.Parameter(torch.zeros(17))

    def forward(self, wave):
        s = torch.stft(wave, 32, 16, window=torch.ones(32), center=False, return_complex=True)
        s = s * torch.polar(self.gain, self.shift)[:, None]
        prev, cur = s[..., :-1], s[..., 1:]
        if self.eps:
            return cur * prev.conj() / (prev.abs().square() + self.eps)
        return cur / prev  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(677)
    net = Vocoder(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(682)

    def step(i):
        opt.zero_grad()
        wave = torch.randn(2, 160, generator=gen)
        if i == 2:
            wave[1, 40:90] = 0
        adv = net(wave)
        loss = (adv.real.tanh() - 0.5).square().mean() + adv.imag.tanh().square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
