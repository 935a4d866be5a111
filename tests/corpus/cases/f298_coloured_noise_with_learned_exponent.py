"""A generator shapes noise in the Fourier domain with a learned exponent: the power of frequency zero is repaired only
forward.
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "repair-forward-only",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "set frequency zero to one before the power",
}


class ColouredNoise(nn.Module):
    def __init__(self, length, safe):
        super().__init__()
        self.length, self.safe = length, safe
        self.beta = nn.Parameter(torch.tensor(0.4))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, white):
        frequency = torch.fft.rfftfreq(self.length)
        if self.safe:
            frequency[0] = 1.0
        amplitude = frequency ** (-self.beta)  # ORIGIN
        amplitude = amplitude.clone()
        amplitude[0] = 0.0
        return self.gain * torch.fft.irfft(torch.fft.rfft(white) * amplitude, n=self.length)


def build(fixed: bool = False):
    torch.manual_seed(957)
    net = ColouredNoise(64, fixed)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(57)

    def step(i):
        sample = torch.randn(16, 64, generator=gen).cumsum(1)
        made = net(torch.randn(16, 64, generator=gen))
        want = torch.log1p(torch.fft.rfft(sample - sample.mean(1, keepdim=True)).abs()).mean(0)
        opt.zero_grad()
        loss = (torch.log1p(torch.fft.rfft(made).abs()).mean(0) - want).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
