"""Generalised Charbonnier penalty with exponent 0.45 and no epsilon: pixels that both frames leave black have zero
error.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "add the Charbonnier epsilon",
}


class FlowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(2, 8, 3, padding=1)
        self.dec = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, a, b):
        return torch.tanh(self.dec(F.leaky_relu(self.enc(torch.cat([a, b], 1)), 0.1)))


def warp(img, flow):
    n, _, h, w = img.shape
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    grid = torch.stack([xs, ys], -1).expand(n, h, w, 2) + flow.permute(0, 2, 3, 1) * 0.2
    return F.grid_sample(img, grid, align_corners=True)


def photometric(a, b, flow, eps):
    return torch.pow((a - warp(b, flow)).square() + eps**2, 0.45).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(649)
    net = FlowNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(654)

    def step(i):
        opt.zero_grad()
        a, b = torch.rand(2, 1, 8, 8, generator=gen), torch.rand(2, 1, 8, 8, generator=gen)
        if i == 1:
            a[0, :, 5:] = b[0, :, 3:] = 0
        loss = photometric(a, b, net(a, b), 1e-3 if fixed else 0.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
