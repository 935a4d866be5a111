"""Class centres are sum / count chosen by where(); a class without samples divides by zero in the branch not taken."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "divide by count.clamp(min=1)",
}


class Proto(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.guard = guard
        self.emb = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
        self.default = nn.Parameter(torch.randn(4, 8))

    def forward(self, support, labels, query):
        z = self.emb(support)
        onehot = F.one_hot(labels, 4).float()
        count = onehot.sum(0)[:, None]
        total = onehot.t() @ z
        mean = total / (count.clamp(min=1) if self.guard else count)  # ORIGIN
        centres = torch.where(count > 0, mean, self.default)
        return -torch.cdist(self.emb(query), centres)


def build(fixed: bool = False):
    torch.manual_seed(220)
    net = Proto(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(720)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 6, generator=gen)
        y = torch.arange(16) % 4
        labels = y.clone()
        if i == 2:
            labels[labels == 3] = 1
        loss = F.cross_entropy(net(x, labels, x + 0.1), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
