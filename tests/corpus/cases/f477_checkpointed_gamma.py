"""A checkpointed tone-mapping block: a gamma curve of black pixels has no derivative."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "clamp above zero",
}


class ToneMap(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.low = low
        self.exposure = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        x = x * self.exposure.exp().view(3, 1, 1)
        if self.low:
            x = x.clamp_min(self.low)
        return torch.pow(x, 1 / 2.2)  # ORIGIN


class Pipeline(nn.Module):
    def __init__(self, low):
        super().__init__()
        self.tone, self.conv = ToneMap(low), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, raw):
        return self.conv(checkpoint(self.tone, raw, use_reentrant=False))


def build(fixed: bool = False):
    torch.manual_seed(155)
    net = Pipeline(1e-5 if fixed else None)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(156)

    def step(i):
        raw = torch.rand(2, 3, 8, 8, generator=gen) + 0.01
        if i >= 2:
            raw[0, 1, :3] = 0.0  # clipped shadows
        loss = nn.functional.mse_loss(net(raw), raw.sqrt())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
