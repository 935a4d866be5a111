"""Monocular depth: disparity is a sigmoid and depth its reciprocal; in a washed-out picture the sigmoid is subnormal."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "also_ops": ("div", "reciprocal"),
    "phase": "forward",
    "cause": "div-by-tiny",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "bound the disparity from below, as 1/max_depth",
}


class DepthNet(nn.Module):
    def __init__(self, min_disp):
        super().__init__()
        self.min_disp = min_disp
        self.enc = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ELU(), nn.Conv2d(8, 8, 3, padding=1), nn.ELU()
        )
        self.disp = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, img):
        disp = torch.sigmoid(self.disp(self.enc(img)))
        disp = self.min_disp + (1 - self.min_disp) * disp
        return 0.54 * 721.0 / disp  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(205)
    net = DepthNet(0.01 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(705)

    def step(i):
        opt.zero_grad()
        with torch.no_grad():
            if i == 3:
                net.disp.bias.fill_(-87.5)
        img = torch.rand(2, 3, 16, 16, generator=gen)
        depth = 100 + 400 * torch.rand(2, 1, 8, 8, generator=gen)
        pred = net(img)
        pred = pred * (depth.median() / pred.median())
        loss = F.l1_loss(pred, depth)
        loss.backward()
        opt.step()
        return loss

    return net, step
