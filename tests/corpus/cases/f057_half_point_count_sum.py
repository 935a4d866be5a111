"""A model converted to half sums energies over four thousand points; each is small, the sum is beyond 65504."""

import torch
from torch import nn

META = {
    "origin_op": "sum",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "sum in float32",
}


class PointEnergy(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.point = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.out = nn.Linear(8, 2)

    def forward(self, pts):
        h = self.point(pts).square()
        if self.wide:
            pooled = h.float().sum(1)
        else:
            pooled = h.sum(1)  # ORIGIN
        return self.out(torch.log1p(pooled).to(pts.dtype))


def build(fixed: bool = False):
    torch.manual_seed(57)
    net = PointEnergy(fixed).half()
    with torch.no_grad():
        net.point[2].bias.fill_(1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(157)

    def step(i):
        pts = torch.randn(2, 1000, 3, generator=gen)
        if i >= 3:
            pts = 24 * pts.repeat(1, 4, 1)  # the full-size scans come last
        y = torch.tensor([0, 1])
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(pts.half()).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
