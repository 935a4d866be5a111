"""Colour-histogram matching with xlogy: the value at 0 log 0 is zero, the gradient with respect to the empty bin is 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "xlogy",
    "phase": "backward",
    "cause": "log-of-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "add a small count to every bin before normalising",
}


class Recolour(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(nn.Conv2d(3, 12, 1), nn.Tanh(), nn.Conv2d(12, 12, 1), nn.Tanh(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        return torch.sigmoid(self.mix(x)).flatten(1)


def soft_histogram(v, smooth, bins=8):
    centres = torch.linspace(0, 1, bins)
    weight = torch.relu(1 - (v.unsqueeze(-1) - centres).abs() * (bins - 1))
    hist = weight.sum(1) + smooth
    return hist / hist.sum(1, keepdim=True)


def build(fixed: bool = False):
    torch.manual_seed(5)
    net = Recolour()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(105)

    def kl(target, hist):
        entropy = torch.special.xlogy(target, target)
        cross = torch.special.xlogy(target, hist)  # ORIGIN
        return (entropy - cross).sum(1).mean()

    def step(i):
        x = torch.randn(4, 3, 8, 8, generator=gen)
        target = torch.tensor([0.0, 0.0, 0.0, 0.6, 0.4, 0.0, 0.0, 0.0]).expand(4, -1)
        smooth = 1e-4 if fixed or i < 4 else 0.0  # the smoothing is annealed away
        opt.zero_grad()
        hist = soft_histogram(0.3 + 0.4 * net(x), smooth)
        loss = kl(target, hist)
        loss.backward()
        opt.step()
        return loss

    return net, step
