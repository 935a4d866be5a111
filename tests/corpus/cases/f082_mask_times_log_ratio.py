"""Depth supervision multiplies the log error by a validity mask: invalid pixels hold depth 0, and 0 * -inf is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("mul",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("zero-times-inf", "where-grad-trap"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "index the valid pixels before the logarithm",
}


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.dec = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, x):
        return nn.functional.softplus(self.dec(self.enc(x))).squeeze(1) + 1e-3


def scale_invariant(pred, true, select):
    valid = true > 0
    if select:
        d = torch.log(pred[valid]) - torch.log(true[valid])
    else:
        d = (torch.log(pred) - torch.log(true)) * valid  # ORIGIN
    return d.square().sum() / valid.sum() - 0.5 * (d.sum() / valid.sum()).square()


def build(fixed: bool = False):
    torch.manual_seed(82)
    net = Depth()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(182)

    def step(i):
        x = torch.rand(2, 3, 8, 8, generator=gen)
        true = 1 + 5 * x.mean(1)
        if i >= 3:
            true[1, :2] = 0.0  # the lidar does not reach the sky
        opt.zero_grad()
        loss = scale_invariant(net(x), true, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
