"""Per-group means by a loop over masked_select; the last group has no member."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mean",
    "phase": "forward",
    "cause": "empty-reduction",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "leave empty groups out",
}


class GroupDRO(nn.Module):
    def __init__(self, groups, guard):
        super().__init__()
        self.groups, self.guard = groups, guard

    def forward(self, losses, g):
        parts = [losses.masked_select(g == k) for k in range(self.groups)]
        if self.guard:
            parts = [p for p in parts if p.numel()]
        return torch.stack([p.mean() for p in parts]).max()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2670)
    net = nn.Linear(4, 2)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2675)
    criterion = GroupDRO(3, fixed)

    def step(i):
        opt.zero_grad()
        g = torch.arange(9) % 3
        if i == 2:
            g = g % 2
        x = torch.randn(9, 4, generator=gen)
        loss = criterion(F.cross_entropy(net(x), torch.arange(9) % 2, reduction="none"), g)
        loss.backward()
        opt.step()
        return loss

    return net, step
