"""Accumulation across calls: every call is a micro-batch, every fourth steps the optimizer; one micro-batch holds a zero vector."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 10,
    "twin_rests": (0, 1, 2, 4, 5, 6, 8, 9),
    "fix": "torch.nn.functional.normalize",
}


class Encoder(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6, bias=False))
        self.safe = safe

    def forward(self, x):
        h = self.f[2](self.f[1](self.f[0](x)))
        if self.safe:
            return nn.functional.normalize(h, dim=-1)
        return h / h.norm(dim=-1, keepdim=True)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(131)
    enc = Encoder(fixed)
    nn.init.constant_(enc.f[0].bias, -0.5)
    opt = torch.optim.SGD(enc.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(132)
    accumulate = 4

    def step(i):
        x = torch.randn(6, 8, generator=gen) * 2
        if i == 6:
            x[2] = 0.0  # a blank recording: with the negative biases no unit fires
        y = x.roll(1, 0)
        a, b = enc(x), enc(y + 0.1)
        loss = (1 - (a * b.detach()).sum(-1)).mean() / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            opt.step()
            opt.zero_grad()
        return loss

    return enc, step
