"""Image registration by phase correlation: the cross-power spectrum of a blank tile is 0, and 0/|0| is NaN in complex numbers."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "add an epsilon to the magnitude",
}


class Register(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.Tanh(), nn.Conv2d(6, 1, 3, padding=1, bias=False)
        )

    def forward(self, a, b):
        fa, fb = torch.fft.rfft2(self.features(a)), torch.fft.rfft2(self.features(b))
        cross = fa * fb.conj()
        phase = cross / (cross.abs() + self.eps)  # ORIGIN
        return torch.fft.irfft2(phase, s=a.shape[-2:]).flatten(1)


def build(fixed: bool = False):
    torch.manual_seed(27)
    net = Register(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(127)

    def step(i):
        a = torch.randn(4, 1, 8, 8, generator=gen)
        if i >= 3:
            a[1] = 0.0  # a tile of open water
        shift = int(torch.randint(0, 8, (1,), generator=gen))
        b = a.roll(-shift, dims=-1)
        y = torch.full((4,), shift)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(10 * net(a, b), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
