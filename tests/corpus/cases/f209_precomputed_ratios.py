"""Ratios of two columns are computed by torch when the data set is made: an empty denominator leaves NaN in the table."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "addmm",
    "also_ops": ("div", "linear"),
    "phase": "data",
    "cause": "nan-in-input",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "clamp the denominator",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 12), nn.Linear(12, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))).squeeze(-1)  # ORIGIN


def table(gen, floor):
    views = torch.randint(1, 50, (32, 3), generator=gen).float()
    clicks = (views * torch.rand(32, 3, generator=gen)).floor()
    views[18, 1] = clicks[18, 1] = 0
    return clicks / views.clamp(min=floor)  # DATA


def build(fixed: bool = False):
    torch.manual_seed(426)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(926)
    x = table(gen, 1.0 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        rows = x[8 * i : 8 * i + 8]
        loss = F.mse_loss(net(rows), rows.nan_to_num().sum(-1))
        loss.backward()
        opt.step()
        return loss

    return net, step
