"""A vocoder's phase loss takes angle of a predicted spectrum; quiet bins are of order 1e-24 and the derivative overflows."""

import torch
from torch import nn

META = {
    "origin_op": "angle",
    "also_ops": ("atan2",),
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("div-by-tiny", "div-by-zero", "norm-at-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "compare unit phasors weighted by magnitude",
}


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.real = nn.Linear(8, 17)
        self.imag = nn.Linear(8, 17)

    def forward(self, mel, level):
        return torch.complex(self.real(mel), self.imag(mel)) * level


def phase_loss(pred, ref, by_unit):
    if by_unit:
        return (pred - ref).abs().square().mean()
    diff = torch.angle(pred) - torch.angle(ref)  # ORIGIN
    return (1 - torch.cos(diff)).mean()


def build(fixed: bool = False):
    torch.manual_seed(251)
    net = Vocoder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(751)

    def step(i):
        opt.zero_grad()
        mel = torch.randn(4, 8, generator=gen)
        level = torch.ones(4, 1)
        if i == 2:
            level[1] = 1e-24
        ref = torch.complex(torch.randn(4, 17, generator=gen), torch.randn(4, 17, generator=gen))
        loss = phase_loss(net(mel, level), ref, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
