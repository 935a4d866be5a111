"""GIoU loss: a padded ground-truth box of no size against a prediction of no size has a union of zero."""
from typing import NamedTuple

import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "div-by-zero", "symptom": "loss-nan",
    "first_bad_step": 3, "n_steps": 5, "fix": "an epsilon in both denominators",
}


class Boxes(NamedTuple):
    x1: torch.Tensor
    y1: torch.Tensor
    x2: torch.Tensor
    y2: torch.Tensor

    @property
    def area(self):
        return (self.x2 - self.x1).clamp(min=0) * (self.y2 - self.y1).clamp(min=0)


def giou(p, t, eps):
    iw = (torch.min(p.x2, t.x2) - torch.max(p.x1, t.x1)).clamp(min=0)
    ih = (torch.min(p.y2, t.y2) - torch.max(p.y1, t.y1)).clamp(min=0)
    inter = iw * ih
    union = p.area + t.area - inter
    hull = Boxes(torch.min(p.x1, t.x1), torch.min(p.y1, t.y1), torch.max(p.x2, t.x2), torch.max(p.y2, t.y2)).area
    if eps:
        return inter / (union + eps) - (hull - union) / (hull + eps)
    return (
        inter / union  # ORIGIN
        - (hull - union)
        / (hull + 1e-7)
    )


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, anchor, feat):
        cx, cy, w, h = anchor.unbind(-1)
        d = self.body(feat)
        cx, cy = cx + 0.1 * d[:, 0] * w, cy + 0.1 * d[:, 1] * h
        w, h = w * torch.exp(d[:, 2].clamp(max=4)), h * torch.exp(d[:, 3].clamp(max=4))
        return Boxes(cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)


def build(fixed=False):
    torch.manual_seed(3)
    net = Head()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    gen = torch.Generator().manual_seed(4)

    def step(i):
        anchor = torch.rand(10, 4, generator=gen) + 0.2
        feat = torch.randn(10, 8, generator=gen)
        if i >= 3:
            anchor[-1] = 0.0  # the collate function pads with zeros
        truth = Boxes(*(torch.cat([anchor[:, :2] - anchor[:, 2:] * 0.45, anchor[:, :2] + anchor[:, 2:] * 0.55], 1)).unbind(1))
        loss = (1 - giou(net(anchor, feat), truth, 1e-7 if fixed else 0)).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
