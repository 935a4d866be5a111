"""A detector's task-aligned assignment in half precision: its epsilon of 1e-9 is zero, and so is the sixth power of a
poor overlap.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ["dtype-underflow"],
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "assign in float32",
}


@torch.no_grad()
def aligned_scores(scores, overlaps, chosen, wide, eps=1e-9):
    """scores, overlaps, chosen: (boxes, anchors)."""
    if wide:
        scores, overlaps, chosen = scores.float(), overlaps.float(), chosen.float()
    metric = scores.sqrt() * overlaps.pow(6) * chosen
    best_metric = metric.amax(1, keepdim=True)
    best_overlap = (overlaps * chosen).amax(1, keepdim=True)
    return (metric * best_overlap / (best_metric + eps)).amax(0)  # ORIGIN


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.SiLU())
        self.cls = nn.Linear(24, 1)

    def forward(self, x):
        return self.cls(self.body(x)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(952)
    net = Detector()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    gen = torch.Generator().manual_seed(52)

    def step(i):
        anchors = torch.randn(20, 8, generator=gen)
        overlaps = 0.3 + 0.6 * torch.rand(4, 20, generator=gen)
        if i >= 3:
            overlaps[2] = 0.03 * torch.rand(20, generator=gen)  # an object smaller than every anchor
        chosen = (overlaps >= overlaps.topk(5, 1).values[:, -1:]).half()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(anchors)
        target = aligned_scores(logits.detach().sigmoid().expand(4, 20), overlaps.half(), chosen, fixed).float()
        opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(logits.float(), target, reduction="sum") / target.sum().clamp_min(1)
        loss.backward()
        opt.step()
        return loss

    return net, step
