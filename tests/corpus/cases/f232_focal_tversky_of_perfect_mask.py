"""Focal Tversky loss raises 1 - TI to a power below one; a saturated, perfectly segmented image has 1 - TI = 0."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "add an epsilon to the base",
}


class FocalTversky(nn.Module):
    def __init__(self, alpha=0.7, gamma=0.75, smooth=0.0):
        super().__init__()
        self.alpha, self.gamma, self.smooth = alpha, gamma, smooth

    def forward(self, logits, mask):
        p = logits.sigmoid().flatten(1)
        m = mask.flatten(1)
        tp, fp, fn = (p * m).sum(1), (p * (1 - m)).sum(1), ((1 - p) * m).sum(1)
        ti = tp / (tp + self.alpha * fn + (1 - self.alpha) * fp)
        return ((1 - ti + self.smooth) ** self.gamma).mean()  # ORIGIN


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))

    def forward(self, x):
        return self.conv(x) + 300 * x


def build(fixed: bool = False):
    torch.manual_seed(621)
    net = UNetish()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(626)
    criterion = FocalTversky(smooth=1e-6 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        mask = (torch.rand(4, 1, 6, 6, generator=gen) > 0.5).float()
        noise = torch.randn(4, 1, 6, 6, generator=gen)
        x = 0.01 * noise if i < 3 else torch.cat([0.01 * noise[:3], 2 * mask[3:] - 1])
        loss = criterion(net(x), mask)
        loss.backward()
        opt.step()
        return loss

    return net, step
