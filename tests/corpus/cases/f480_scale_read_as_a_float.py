"""Scale-invariant depth: prediction and target are aligned by a factor that is read as a float; one depth map is empty."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "an epsilon in the divisor",
}


def median_scale(predicted, depth, valid, eps):
    with torch.no_grad():
        inside = (depth * valid).sum() / valid.sum().clamp(min=1)
        return float(inside / ((predicted * valid).sum() / valid.sum().clamp(min=1) + eps))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1), nn.Softplus())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    eps = 1e-6 if fixed else 0.0
    gen = torch.Generator().manual_seed(4)

    def step(i):
        image = torch.rand(2, 3, 8, 8, generator=gen)
        depth = torch.rand(2, 1, 8, 8, generator=gen) * 5 + 0.5
        valid = (torch.rand(2, 1, 8, 8, generator=gen) > 0.3).float()
        if i == 2:
            valid = torch.zeros_like(valid)
        predicted = net(image)
        scale = median_scale(predicted, depth, valid, eps)
        loss = ((predicted * scale - depth).abs() * valid).sum() / valid.sum().clamp(min=1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
