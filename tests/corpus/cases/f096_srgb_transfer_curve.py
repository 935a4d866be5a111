"""The sRGB curve chooses its linear part below 0.0031 by where(); the power branch has an infinite slope at a black pixel."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("pow-fraction-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the argument of the power to the switch-over point",
}


class ToneMapper(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.exposure = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)
        )

    def encode(self, linear):
        arg = linear.clamp_min(0.0031308) if self.safe else linear
        power = 1.055 * arg.pow(1 / 2.4) - 0.055  # ORIGIN
        return torch.where(linear > 0.0031308, power, 12.92 * linear)

    def forward(self, raw):
        gain = torch.exp(self.exposure(raw))
        return self.encode(raw * gain[:, :, None, None])


def build(fixed: bool = False):
    torch.manual_seed(96)
    net = ToneMapper(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(196)

    def step(i):
        raw = 0.05 + 0.9 * torch.rand(3, 3, 6, 6, generator=gen)
        if i >= 3:
            raw[1, :, 0] = 0.0  # a black border
        target = raw.pow(0.5)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(raw), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
