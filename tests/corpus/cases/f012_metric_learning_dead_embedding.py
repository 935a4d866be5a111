"""Metric learning: embeddings leave a ReLU and are divided by their norm; for one crop every unit is dead."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "torch.nn.functional.normalize",
}


class Embedder(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, bias=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, x):
        e = self.conv(x).flatten(1)
        if self.safe:
            return nn.functional.normalize(e, dim=1)
        return e / e.norm(dim=1, keepdim=True)  # ORIGIN


def proxy_loss(e, proxies, y):
    return nn.functional.cross_entropy(8 * e @ nn.functional.normalize(proxies, dim=1).t(), y)


def build(fixed: bool = False):
    torch.manual_seed(12)
    net = Embedder(fixed)
    net.proxies = nn.Parameter(torch.randn(4, 16))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(112)

    def step(i):
        x = torch.rand(6, 1, 12, 12, generator=gen)
        if i == 4:
            x[2] = 0.0  # the crop fell outside the image
        y = torch.randint(0, 4, (6,), generator=gen)
        opt.zero_grad()
        loss = proxy_loss(net(x), net.proxies, y)
        loss.backward()
        opt.step()
        return loss

    return net, step
