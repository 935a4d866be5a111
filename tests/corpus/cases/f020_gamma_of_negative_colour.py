"""A camera pipeline converts YUV to RGB and applies a learned gamma; saturated chroma makes a channel negative."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-negative-base",
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "clamp the linear image to a small positive floor",
}


class Pipeline(nn.Module):
    def __init__(self, clip):
        super().__init__()
        self.clip = clip
        self.denoise = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
        nn.init.zeros_(self.denoise[2].weight)
        nn.init.zeros_(self.denoise[2].bias)
        self.register_buffer("yuv2rgb", torch.tensor([[1.0, 0.0, 1.14], [1.0, -0.395, -0.581], [1.0, 2.032, 0.0]]))
        self.gamma = nn.Parameter(torch.full((3, 1, 1), 0.45))

    def forward(self, yuv):
        yuv = yuv + 0.1 * self.denoise(yuv)
        rgb = torch.einsum("ij,bjhw->bihw", self.yuv2rgb, yuv)
        if self.clip:
            rgb = rgb.clamp_min(1e-4)
        return rgb**self.gamma  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(20)
    net = Pipeline(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(120)

    def step(i):
        luma = 0.4 + 0.5 * torch.rand(3, 1, 8, 8, generator=gen)
        chroma = 0.1 * (torch.rand(3, 2, 8, 8, generator=gen) - 0.5)
        if i == 5:
            chroma[0, 0, 2, 2:5] = -0.45  # a traffic light
        target = luma.expand(-1, 3, -1, -1) ** 0.45
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(torch.cat([luma, chroma], 1)), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
