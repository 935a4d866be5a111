"""Speech enhancement with a magnitude loss: the magnitude is the root of re^2 + im^2, and padding leaves whole frames at zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "add 1e-8 under the root",
}


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(33, 24, batch_first=True)
        self.out = nn.Linear(24, 33)

    def forward(self, mag):
        h, _ = self.rnn(mag)
        return torch.sigmoid(self.out(h))


def spectrum(wave):
    return torch.stft(wave, 64, 32, window=torch.hann_window(64), return_complex=True).transpose(1, 2)


def magnitude(real, imag, eps):
    return torch.sqrt(real.square() + imag.square() + eps)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(207)
    net = Mask()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(707)
    eps = 1e-8 if fixed else 0.0

    def step(i):
        opt.zero_grad()
        clean = 0.3 * torch.randn(4, 640, generator=gen)
        noisy = clean + 0.1 * torch.randn(4, 640, generator=gen)
        if i >= 1:
            noisy[2, 400:] = 0.0  # padded to the longest clip
        S, N = spectrum(clean), spectrum(noisy)
        mask = net(N.abs())
        est = torch.complex(N.real * mask, N.imag * mask)
        loss = F.l1_loss(magnitude(est.real, est.imag, eps), S.abs())
        loss.backward()
        opt.step()
        return loss

    return net, step
