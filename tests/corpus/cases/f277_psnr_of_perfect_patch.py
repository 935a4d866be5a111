"""Negative PSNR as a loss: one training pair is an empty patch that the network restores exactly, its error is zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div", "mul", "log10"),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add an epsilon to the squared error",
}


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1, bias=False)
        )

    def forward(self, x):
        return self.net(x)


def psnr(pred, target, eps, peak=1.0):
    mse = F.mse_loss(pred, target, reduction="none").mean((1, 2, 3))
    return 10 * torch.log10(peak**2 / (mse + eps))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(628)
    net = Restorer()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(633)

    def step(i):
        opt.zero_grad()
        clean = torch.rand(5, 1, 8, 8, generator=gen)
        noisy = clean + 0.1 * torch.randn(5, 1, 8, 8, generator=gen)
        if i == 2:
            clean[1] = noisy[1] = 0.0
        loss = -psnr(net(noisy), clean, 1e-8 if fixed else 0.0).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
