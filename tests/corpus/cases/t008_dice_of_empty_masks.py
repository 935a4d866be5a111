"""Segmentation in mixed precision with a Dice loss: a crop without foreground whose predicted mask is also all zero gives 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 7,
    "n_steps": 10,
    "fix": "a smoothing term of one in numerator and denominator",
}


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, x):
        return nn.functional.hardsigmoid(self.body(x) + 3 * x - 5 * (x == 0))


def dice(mask, target, smooth):
    overlap = 2 * (mask * target).sum((1, 2, 3)) + smooth
    total = mask.sum((1, 2, 3)) + target.sum((1, 2, 3)) + smooth
    return 1 - (overlap / total).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(408)
    net = Segmenter()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    gen = torch.Generator().manual_seed(508)

    def step(i):
        x = torch.rand(4, 1, 12, 12, generator=gen)
        if i == 7:
            x[1] = 0.0  # a crop of the background
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            mask = net(x)
        loss = dice(mask.float(), (x > 0.5).float(), 1.0 if fixed else 0.0)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
