"""The target is clicks / impressions; an item that was never shown has the target 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "mse_loss",
    "also_ops": ("div", "sub"),
    "phase": "data",
    "also_phase": "forward",
    "cause": "nan-in-target",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "leave items without impressions out",
}


class RateModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(50, 8)
        self.cross = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.out = nn.Linear(16, 1)

    def forward(self, item, context):
        return torch.sigmoid(self.out(self.cross(torch.cat([self.item(item), context], -1)))).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(72)
    net = RateModel()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(172)

    def step(i):
        item, context = torch.randint(0, 50, (20,), generator=gen), torch.randn(20, 4, generator=gen)
        shown = torch.randint(1, 200, (20,), generator=gen).float()
        if i == 3:
            shown[14] = 0.0
        clicks = (shown * torch.rand(20, generator=gen) * 0.2).floor()
        if fixed:
            item, context, clicks, shown = (t[shown > 0] for t in (item, context, clicks, shown))
        rate = clicks / shown  # DATA
        opt.zero_grad()
        pred = net(item, context)
        loss = nn.functional.mse_loss(pred, rate)  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
