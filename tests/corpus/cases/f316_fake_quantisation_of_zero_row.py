"""Fake quantisation by the row's largest magnitude: a row of zeros has scale zero, inside a custom autograd.Function."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "a floor under the scale",
    "also_causes": ["norm-at-zero"],
}


class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, floor):
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(floor)
        return torch.round(x / scale) * scale  # ALSO

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class QLinear(nn.Module):
    def __init__(self, i, o, floor):
        super().__init__()
        self.floor = floor
        self.lin = nn.Linear(i, o, bias=False)

    def forward(self, x):
        return self.lin(FakeQuant.apply(x, self.floor))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(841)
    floor = 1e-8 if fixed else 0.0
    net = nn.Sequential(QLinear(8, 16, floor), nn.ReLU(), QLinear(16, 16, floor), nn.ReLU(), QLinear(16, 3, floor))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(842)

    def step(i):
        x = torch.randn(8, 8, generator=gen)
        if i == 3:
            x[6] = 0.0
        y = torch.randint(0, 3, (8,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
