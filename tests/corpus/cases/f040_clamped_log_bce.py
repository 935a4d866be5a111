"""Segmentation loss with log(p).clamp(min=-100), as the library does it in its own forward: the clamp hides the -inf, not its slope."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("log-of-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "clamp p, not its logarithm",
}


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(9, 2, 1)

    def forward(self, x):
        h = self.up(self.mid(self.down(x)))
        return torch.softmax(self.out(torch.cat([h, x], 1)), 1)


def bce(p, y, clamp_first):
    if clamp_first:
        logs = [torch.log(p[:, k].clamp(min=1e-12)) for k in (0, 1)]
    else:
        logs = [torch.log(p[:, k]).clamp(min=-100) for k in (0, 1)]  # ORIGIN
    return -(y * logs[1] + (1 - y) * logs[0]).mean()


def build(fixed: bool = False):
    torch.manual_seed(40)
    net = UNetish()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(140)

    def step(i):
        x = torch.rand(3, 1, 8, 8, generator=gen)
        if i == 5:
            x[1, 0, 2, 3] = 3000.0  # a hot pixel
        y = (x[:, 0] > 0.5).float()
        opt.zero_grad()
        loss = bce(net(x), y, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
