"""Inverse propensity scoring of a slate: the product of many small propensities is subnormal and its reciprocal overflows."""

import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-tiny",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clip the propensity before inverting it",
}


class Ranker(nn.Module):
    def __init__(self, items=40, dim=12):
        super().__init__()
        self.user, self.item = nn.Embedding(20, dim), nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, user, item):
        u = self.user(user).unsqueeze(1).expand(-1, item.shape[1], -1)
        return self.mlp(torch.cat([u, self.item(item)], -1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(11)
    net = Ranker()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(111)
    floor = 1e-4 if fixed else 0.0

    def step(i):
        user = torch.randint(0, 20, (8,), generator=gen)
        item = torch.randint(0, 40, (8, 10), generator=gen)
        shown = 0.2 + 0.6 * torch.rand(8, 10, generator=gen)
        if i == 3:
            shown[4] = 1.3e-4  # a slate that the logging policy would hardly ever show
        clicks = (torch.rand(8, 10, generator=gen) < 0.3).float()
        weight = torch.reciprocal(shown.prod(1).clamp_min(floor))  # ORIGIN
        weight = weight / weight.sum()
        opt.zero_grad()
        each = nn.functional.binary_cross_entropy_with_logits(net(user, item), clicks, reduction="none").mean(1)
        loss = (weight * each).sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
