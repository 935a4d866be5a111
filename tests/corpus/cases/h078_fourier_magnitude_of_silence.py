"""Magnitudes of a Fourier transform that are exactly zero, compared without a logarithm."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the gradient of a complex magnitude at zero is zero in torch",
}


class Fir(nn.Module):
    def __init__(self):
        super().__init__()
        self.fir = nn.Conv1d(1, 1, 5, padding=2, bias=False)

    def forward(self, x):
        return torch.fft.rfft(self.fir(x)).abs()


def build(fixed: bool = False):
    torch.manual_seed(1842)
    net = Fir()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1847)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 1, 32, generator=gen)
        x[1] = 0
        loss = (net(x) - torch.fft.rfft(x).abs()).abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
