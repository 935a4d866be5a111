"""A differentiable distance transform: far from any boundary the convolution is zero, and its log is repaired only
forward.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "repair-forward-only",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "put ones where the convolution is zero before the logarithm",
}


def distance_transform(mask, safe, h=0.35):
    grid = torch.arange(-1.0, 2.0)
    kernel = torch.exp(-torch.hypot(grid[:, None], grid[None, :]) / h)[None, None]
    out, boundary = torch.zeros_like(mask), mask
    for ring in range(3):
        near = F.conv2d(F.pad(boundary, (1, 1, 1, 1), mode="replicate"), kernel)
        if safe:
            seen = near > 0
            distance = torch.where(seen, -h * torch.log(torch.where(seen, near, 1.0)), 0.0)
        else:
            distance = -h * torch.log(near)  # ORIGIN
            distance = torch.nan_to_num(distance, nan=0.0, posinf=0.0, neginf=0.0)
        out = out + torch.where(distance > 0, distance + ring, 0.0)
        boundary = torch.where(distance > 0, 1.0, boundary)
    return out


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))

    def forward(self, x):
        return torch.relu(self.body(x)).clamp(max=1.0)


def build(fixed: bool = False):
    torch.manual_seed(931)
    net = Segmenter()
    nn.init.constant_(net.body[2].bias, 0.3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(31)

    def step(i):
        x = torch.rand(2, 1, 16, 16, generator=gen)
        crop = torch.ones_like(x)
        if i >= 3:
            crop[0, :, :, 5:] = 0.0  # the organ ends at the border of the scan
        opt.zero_grad()
        mask = net(x) * crop
        loss = distance_transform(mask, fixed).mean() + F.mse_loss(mask, (x > 0.5).float())
        loss.backward()
        opt.step()
        return loss

    return net, step
