"""A cepstrum takes the complex logarithm of a learned filter's spectrum; a silent frame has spectrum zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "a spectral floor before the logarithm",
}


class Cepstral(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.filter = nn.Conv1d(1, 3, 5, padding=2, bias=False)
        self.head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, wave):
        spec = torch.fft.fft(self.filter(wave.unsqueeze(1)))
        cepstrum = torch.fft.ifft(torch.log(spec + self.floor)).real  # ORIGIN
        return self.head(cepstrum[..., :8].flatten(1))


def build(fixed: bool = False):
    torch.manual_seed(83)
    net = Cepstral(1e-3 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(183)

    def step(i):
        wave = torch.randn(5, 16, generator=gen)
        if i == 4:
            wave[2] = 0.0
        y = torch.randint(0, 2, (5,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(wave), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
