"""Soft dice per class in a comprehension: a class absent from target and prediction gives 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "a smoothing term in numerator and denominator",
}


def dice(pred, onehot, smooth):
    terms = [
        (2 * (p * t).sum() + smooth)  # ORIGIN
        / (p.sum() + t.sum() + smooth)
        for p, t in zip(pred.unbind(1), onehot.unbind(1), strict=True)
    ]
    return 1 - torch.stack(terms).mean()


class UNetish(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.dec = nn.Conv2d(8, classes, 1)

    def forward(self, x, organ_present):
        return torch.sigmoid(self.dec(self.enc(x))) * organ_present.view(1, -1, 1, 1)


def build(fixed: bool = False):
    torch.manual_seed(13)
    net = UNetish()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(14)

    def step(i):
        x = torch.randn(2, 1, 8, 8, generator=gen)
        present = torch.ones(4)
        if i == 2:
            present[3] = 0  # a scan that does not reach the kidney
        y = torch.randint(0, int(present.sum()), (2, 8, 8), generator=gen)
        onehot = nn.functional.one_hot(y, 4).permute(0, 3, 1, 2).float()
        loss = dice(net(x, present), onehot, 1.0 if fixed else 0.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
