"""A GradScaler told to begin at a scale of one: nothing is scaled for two thousand steps, and half-precision gradients are flushed to zero."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "grad:enc.0.weight",
    "fix": "the default initial scale",
}


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 6, 3, padding=1), nn.Tanh())
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.out(self.enc(x))


def build(fixed: bool = False):
    torch.manual_seed(634)
    net = Segmenter()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16 if fixed else 1.0)
    gen = torch.Generator().manual_seed(734)

    def step(i):
        x = torch.randn(2, 1, 64, 64, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = 1e-4 * nn.functional.cross_entropy(logits.float(), y)  # ORIGIN
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
