"""Gradients rounded to float8_e5m2 without a scale: behind a mean over many pixels all are below 7.6e-6 and the backbone gets exactly zero.

Source: float8 training recipes (gradients need a delayed or just-in-time scale)
"""
import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "grad:backbone.weight",
    "fix": "scale the gradient by its amax before the cast",
}


class Fp8Grad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scaled):
        ctx.scaled = scaled
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        scale = 1024.0 / g.abs().amax().clamp_min(1e-30) if ctx.scaled else 1.0
        g8 = (g * scale).to(torch.float8_e5m2)  # ORIGIN
        return g8.to(g.dtype) / scale, None


class Depth(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled
        self.backbone = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Conv2d(6, 1, 1)

    def forward(self, x):
        h = torch.relu(self.backbone(x))
        h = Fp8Grad.apply(h, self.scaled)  # ALSO
        return self.head(h)


def build(fixed: bool = False):
    torch.manual_seed(362)
    net = Depth(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(363)

    def step(i):
        x = torch.rand(4, 3, 48, 48, generator=gen)
        depth = x.mean(1, keepdim=True)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), depth) * 0.01
        loss.backward()
        opt.step()
        return loss

    return net, step
