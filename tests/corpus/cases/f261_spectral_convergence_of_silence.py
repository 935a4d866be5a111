"""Multi-resolution STFT loss: the spectral convergence term divides by the norm of the target's magnitude, and one
clip is digital silence.
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add a floor to the denominator",
}


class SpectralConvergence(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x, y):
        apart = torch.norm(y - x, p="fro", dim=(1, 2))
        return (apart / (torch.norm(y, p="fro", dim=(1, 2)) + self.floor)).mean()  # ORIGIN


class MultiResolution(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.sizes, self.term = (16, 32), SpectralConvergence(floor)

    def mag(self, w, n):
        s = torch.stft(w, n, n // 4, window=torch.hann_window(n), return_complex=True)
        return torch.sqrt(torch.view_as_real(s).square().sum(-1).clamp(min=1e-7 if self.term.floor else 0.0) + 1e-12)

    def forward(self, x, y):
        return sum(self.term(self.mag(x, n), self.mag(y, n) - 1e-6) for n in self.sizes)


def build(fixed: bool = False):
    torch.manual_seed(656)
    net = nn.Conv1d(1, 1, 5, padding=2)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(661)
    criterion = MultiResolution(1e-5 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        clean = torch.randn(3, 1, 96, generator=gen)
        if i == 2:
            clean[1] = 0
        loss = criterion(net(clean + 0.1 * torch.randn(3, 1, 96, generator=gen)).squeeze(1), clean.squeeze(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
