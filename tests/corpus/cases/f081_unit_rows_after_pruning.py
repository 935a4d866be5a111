"""A weight is parametrised by its unit rows; magnitude pruning clears a whole row, whose direction is then 0/0."""

import torch
from torch import nn
from torch.nn.utils import parametrize

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the norm from below",
}


class UnitRows(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, weight):
        length = weight.square().sum(1, keepdim=True).clamp_min(self.floor).sqrt()
        return weight / length  # ORIGIN


class Net(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        parametrize.register_parametrization(self.b, "weight", UnitRows(floor))

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


@torch.no_grad()
def prune(layer, rows):
    raw = layer.parametrizations.weight.original
    weakest = raw.square().sum(1).argsort()[:rows]
    raw[weakest] = 0.0


def build(fixed: bool = False):
    torch.manual_seed(81)
    net = Net(1e-8 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(181)

    def step(i):
        x = torch.randn(12, 6, generator=gen)
        y = torch.randint(0, 3, (12,), generator=gen)
        if i == 3:
            prune(net.b, 2)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
