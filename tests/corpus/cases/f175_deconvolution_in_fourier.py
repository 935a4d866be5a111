"""Blind deconvolution divides spectra; a low-passed observation has a bin of exactly zero in the learned kernel's spectrum."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "Wiener filter with a noise floor",
}


class Deconv(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.gain = nn.Parameter(torch.ones(33))

    def forward(self, wave, kernel):
        y = torch.fft.rfft(wave)
        h = torch.fft.rfft(kernel, n=64) * self.gain
        if self.floor:
            x = y * h.conj() / (h.abs().square() + self.floor)
        else:
            x = y / h  # ORIGIN
        return torch.fft.irfft(x, n=64)


def build(fixed: bool = False):
    torch.manual_seed(318)
    net = Deconv(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(818)

    def step(i):
        opt.zero_grad()
        wave = torch.randn(4, 64, generator=gen)
        kernel = torch.rand(5, generator=gen)
        if i == 2:
            kernel = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])
            kernel[1] = -0.5  # a difference filter has no DC
        loss = net(wave, kernel).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
