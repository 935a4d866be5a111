"""Under float16 autocast a linear layer's output of a few hundred is squared in half precision: 300 squared is beyond 65504."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "also_ops": ("square",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "float() before the square",
}


class VibrationScore(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.enc = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12))
        self.dec = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16))

    def forward(self, x):
        out = self.dec(self.enc(x))
        if self.wide:
            out = out.float()
        error = (out - x.to(out.dtype)).square()  # ORIGIN
        return error.mean(1)


def build(fixed: bool = False):
    torch.manual_seed(95)
    net = VibrationScore(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(195)

    def step(i):
        x = torch.randn(8, 16, generator=gen)
        if i == 4:
            x[5] *= 400.0  # a bearing broke
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            score = net(x)
        loss = torch.log1p(score.float()).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
