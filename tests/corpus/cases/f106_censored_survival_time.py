"""Days to relapse are NaN for patients without a relapse; the regression takes the column as its target."""

import torch
from torch import nn

META = {
    "origin_op": "sub",
    "also_ops": ("div", "index_put_", "fill_", "masked_fill_", "masked_fill"),
    "phase": "data",
    "cause": "nan-in-target",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "train on the patients whose time is known (or a censored likelihood)",
}


class RelapseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.site = nn.Embedding(4, 3)
        self.net = nn.Sequential(
            nn.Linear(9, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)
        )

    def forward(self, site, x):
        return self.net(torch.cat([self.site(site), x], -1)).squeeze(-1)


def read_cohort():
    gen = torch.Generator().manual_seed(206)
    x, site = torch.randn(96, 6, generator=gen), torch.randint(0, 4, (96,), generator=gen)
    days = 300 * torch.rand(96, generator=gen) + 30
    days[50:60] = torch.nan  # DATA
    return site, x, days / 365


def build(fixed: bool = False):
    torch.manual_seed(106)
    net = RelapseNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    site, x, years = read_cohort()

    def step(i):
        rows = torch.arange(16 * i, 16 * i + 16)
        if fixed:
            rows = rows[~torch.isnan(years[rows])]
        error = net(site[rows], x[rows]) - years[rows]  # ORIGIN
        opt.zero_grad()
        loss = error.abs().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
