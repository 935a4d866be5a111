"""Spectral magnitude written as a chain of methods over several lines: its square root is differentiated at the empty bins."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon under the root",
}


class MaskNet(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.mask = nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.Linear(32, 17), nn.Sigmoid())
        self.register_buffer("win", torch.ones(32))

    def spectrum(self, x):
        return torch.stft(x, 32, 32, window=self.win, center=False, return_complex=True).transpose(1, 2)

    def forward(self, wave):
        spec = self.spectrum(wave)
        mask = self.mask(torch.log1p(spec.abs()))
        return spec * mask

    def magnitude(self, spec):
        if self.eps:
            return (torch.view_as_real(spec).pow(2).sum(-1) + self.eps).sqrt()
        return (
            torch.view_as_real(spec).pow(2).sum(-1).sqrt()  # ORIGIN
        )


def build(fixed: bool = False):
    torch.manual_seed(25)
    net = MaskNet(1e-9 if fixed else 0)
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(26)

    def step(i):
        clean = torch.randn(3, 256, generator=gen)
        noisy = clean + 0.3 * torch.randn(3, 256, generator=gen)
        if i == 2:
            noisy[1, 128:] = 0.0  # dropped packets
        est = net(noisy)
        ref = net.spectrum(clean)
        loss = (net.magnitude(est) - ref.abs()).abs().mean() + 0.1 * (est - ref).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
