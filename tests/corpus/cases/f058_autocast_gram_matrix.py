"""Gram matrices under float16 autocast: the product of unnormalised features over all pixels overflows before its division."""

import torch
from torch import nn

META = {
    "origin_op": "bmm",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "divide the features before the product",
}


class Texture(nn.Module):
    def __init__(self, divide_first):
        super().__init__()
        self.divide_first = divide_first
        self.vgg = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.paint = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
        self.vgg.requires_grad_(False)

    def gram(self, image):
        f = self.vgg(image).flatten(2)
        if self.divide_first:
            f = f / f.shape[-1] ** 0.5
            return torch.bmm(f, f.transpose(1, 2))
        return torch.bmm(f, f.transpose(1, 2)) / f.shape[-1]  # ORIGIN

    def forward(self, image, style):
        out = image + self.paint(image / 255) * 10
        return (self.gram(out) - self.gram(style)).float().abs().mean() * 1e-3


def build(fixed: bool = False):
    torch.manual_seed(58)
    net = Texture(fixed)
    opt = torch.optim.Adam(net.paint.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(158)

    def step(i):
        top = 255.0 if i >= 4 else 40.0  # the night pictures are over
        image, style = top * torch.rand(2, 1, 12, 12, generator=gen), top * torch.rand(2, 1, 12, 12, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(image, style)
        loss.backward()
        opt.step()
        return loss

    return net, step
