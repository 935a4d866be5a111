"""Multi-task regression averages each task with nanmean; a batch has no label at all for one task."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "also_ops": ("nanmean", "sum", "nansum"),
    "phase": "forward",
    "cause": "empty-reduction",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "divide by at least one",
}


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.shared, self.heads = nn.Linear(6, 12), nn.Linear(12, tasks)

    def forward(self, x):
        return self.heads(F.silu(self.shared(x)))


def task_losses(pred, target, skip_empty):
    seen = ~target.isnan()
    error = (pred - target.nan_to_num(0.0)).square()
    if skip_empty:
        return (error * seen).sum(0) / seen.sum(0).clamp(min=1)
    return error.masked_fill(~seen, torch.nan).nanmean(0)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1356)
    net = MultiTask(3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1361)

    def step(i):
        opt.zero_grad()
        target = torch.randn(10, 3, generator=gen)
        target[torch.rand(10, 3, generator=gen) < 0.3] = torch.nan
        if i == 2:
            target[:, 1] = torch.nan
        loss = task_losses(net(torch.randn(10, 6, generator=gen)), target, fixed).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
