"""GIoU of two boxes that both have no area: the ground truth is a point, the prediction's size went through a ReLU."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add an epsilon to the union",
}


def corners(b):
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


class GIoU(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, a, b):
        a, b = corners(a), corners(b)
        wh = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
        inter, area = wh.prod(1), lambda r: (r[:, 2] - r[:, 0]) * (r[:, 3] - r[:, 1])
        union = area(a) + area(b) - inter
        iou = inter / (union + self.eps)  # ORIGIN
        hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
        return 1 - (iou - (hull - union) / (hull + self.eps))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.SiLU())
        self.centre, self.size = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x):
        h = self.body(x)
        return torch.cat([self.centre(h), F.relu(self.size(h))], -1)


def build(fixed: bool = False):
    torch.manual_seed(607)
    net = Detector()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(612)
    criterion = GIoU(1e-7 if fixed else 0.0)
    with torch.no_grad():
        net.size.weight.copy_(-net.size.weight.abs())
        net.size.bias.fill_(0.4)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=gen)
        box = torch.rand(12, 4, generator=gen)
        if i >= 2:
            box[4, 2:] = 0
            x[4] *= 60
        loss = criterion(net(x), box).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
