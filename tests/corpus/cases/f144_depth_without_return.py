"""A lidar completion net is trained against range images in which beams without return are NaN."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mse_loss",
    "also_ops": ("sub", "l1_loss"),
    "phase": "data",
    "cause": "nan-in-target",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "average over the valid pixels",
}


class Complete(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, sparse):
        return self.net(sparse)


def scan(gen):
    full = 1 + 9 * torch.rand(2, 1, 12, 12, generator=gen)
    hit = torch.rand(2, 1, 12, 12, generator=gen) < 0.8
    return torch.where(hit, full, 0.0), torch.where(hit, full, torch.nan)  # DATA


def build(fixed: bool = False):
    torch.manual_seed(242)
    net = Complete()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(742)

    def step(i):
        opt.zero_grad()
        sparse, target = scan(gen)
        pred = net(sparse)
        if fixed:
            valid = target.isfinite()
            loss = F.mse_loss(pred[valid], target[valid])
        else:
            loss = F.mse_loss(pred, target)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
