"""Elastic weight consolidation: the importances of each tensor are divided by their largest; a head that the first task never used has none."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the largest importance",
}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.heads = nn.ModuleList([nn.Linear(12, 2), nn.Linear(12, 2)])

    def forward(self, x, task):
        return self.heads[task](torch.tanh(self.body(x)))


def consolidate(net, squares, least):
    kept = []
    with torch.no_grad():
        for p, s in zip(net.parameters(), squares, strict=True):
            kept.append((p.clone(), s / s.max().clamp(min=least)))  # ORIGIN
    return kept


def build(fixed: bool = False):
    torch.manual_seed(644)
    net = TwoHeads()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    squares = [torch.zeros_like(p) for p in net.parameters()]
    gen = torch.Generator().manual_seed(744)
    anchors = []

    def step(i):
        if i == 3:
            anchors.extend(consolidate(net, squares, 1e-12 if fixed else 0.0))
        x = torch.randn(16, 5, generator=gen)
        y = (x[:, i // 3] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x, i // 3), y)
        for (anchor, importance), p in zip(anchors, net.parameters(), strict=False):
            loss = loss + 0.1 * (importance * (p - anchor).square()).sum()
        loss.backward()
        if i < 3:
            for s, p in zip(squares, net.parameters(), strict=True):
                if p.grad is not None:
                    s.add_(p.grad.square())
        opt.step()
        return loss

    return net, step
